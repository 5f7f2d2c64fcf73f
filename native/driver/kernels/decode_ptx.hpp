// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from decode.cu; not to be edited. Its SHA-256:
// 7c14555bfa7747ead73e15b15ad35ad53be254d1e565616eba62d3288fa0ad60
#pragma once

namespace penstock::driver::cuda {

inline constexpr char kDecodePtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry penstock_decode(
	.param .u64 penstock_decode_param_0,
	.param .u64 penstock_decode_param_1,
	.param .u64 penstock_decode_param_2,
	.param .u64 penstock_decode_param_3,
	.param .u64 penstock_decode_param_4,
	.param .u64 penstock_decode_param_5,
	.param .u64 penstock_decode_param_6,
	.param .u64 penstock_decode_param_7,
	.param .u64 penstock_decode_param_8,
	.param .u32 penstock_decode_param_9
)
.maxntid 1024, 1, 1
{
	.reg .pred 	%p<100>;
	.reg .b16 	%rs<5>;
	.reg .b32 	%r<746>;
	.reg .b64 	%rd<260>;
	ld.param.u64 	%rd19, [penstock_decode_param_1];
	ld.param.u64 	%rd20, [penstock_decode_param_2];
	ld.param.u64 	%rd23, [penstock_decode_param_5];
	ld.param.u64 	%rd24, [penstock_decode_param_6];
	ld.param.u64 	%rd25, [penstock_decode_param_7];
	ld.param.u32 	%r210, [penstock_decode_param_9];
	cvta.to.global.u64 	%rd1, %rd19;
	ld.global.v4.u32 	{%r211, %r212, %r213, %r214}, [%rd1+32];
	mov.u32 	%r5, %tid.x;
	shr.u32 	%r215, %r5, 8;
	mov.u32 	%r216, %ntid.x;
	shr.u32 	%r217, %r216, 8;
	add.s64 	%rd27, %rd20, 8191;
	shr.u64 	%rd28, %rd27, 13;
	mov.u32 	%r218, %ctaid.x;
	mul.wide.u32 	%rd29, %r217, %r218;
	cvt.u64.u32 	%rd30, %r215;
	add.s64 	%rd259, %rd29, %rd30;
	setp.ge.u64 	%p1, %rd259, %rd28;
	@%p1 bra 	$L__BB0_177;
	cvta.to.global.u64 	%rd31, %rd23;
	shl.b64 	%rd32, %rd259, 2;
	add.s64 	%rd33, %rd31, %rd32;
	ld.global.u32 	%r703, [%rd33];
	ld.global.u32 	%r704, [%rd33+4];
	and.b32  	%r219, %r5, 224;
	shr.u32 	%r220, %r219, 5;
	cvt.u64.u32 	%rd34, %r220;
	shl.b64 	%rd35, %rd259, 3;
	or.b64  	%rd3, %rd35, %rd34;
	add.s64 	%rd36, %rd20, 1023;
	shr.u64 	%rd37, %rd36, 10;
	setp.lt.u64 	%p2, %rd3, %rd37;
	@%p2 bra 	$L__BB0_3;
	bra.uni 	$L__BB0_2;
$L__BB0_3:
	shl.b32 	%r224, %r5, 3;
	and.b32  	%r225, %r224, 248;
	cvt.u64.u32 	%rd38, %r225;
	shl.b64 	%rd39, %rd3, 10;
	or.b64  	%rd4, %rd39, %rd38;
	setp.ge.u64 	%p3, %rd4, %rd20;
	add.s64 	%rd5, %rd1, %rd4;
	mov.u32 	%r715, 0;
	mov.u32 	%r713, %r715;
	mov.u32 	%r714, %r715;
	@%p3 bra 	$L__BB0_5;
	ld.global.v2.u32 	{%r713, %r714}, [%rd5+64];
$L__BB0_5:
	add.s64 	%rd40, %rd4, 256;
	setp.ge.u64 	%p4, %rd40, %rd20;
	mov.u32 	%r716, %r715;
	@%p4 bra 	$L__BB0_7;
	ld.global.v2.u32 	{%r715, %r716}, [%rd5+320];
$L__BB0_7:
	add.s64 	%rd41, %rd4, 512;
	setp.ge.u64 	%p5, %rd41, %rd20;
	mov.u32 	%r719, 0;
	mov.u32 	%r717, %r719;
	mov.u32 	%r718, %r719;
	@%p5 bra 	$L__BB0_9;
	ld.global.v2.u32 	{%r717, %r718}, [%rd5+576];
$L__BB0_9:
	or.b64  	%rd50, %rd4, 768;
	setp.ge.u64 	%p6, %rd50, %rd20;
	mov.u32 	%r720, %r719;
	@%p6 bra 	$L__BB0_11;
	shr.u32 	%r664, %r5, 8;
	cvt.u64.u32 	%rd247, %r664;
	shl.b32 	%r662, %r5, 3;
	and.b32  	%r661, %r662, 248;
	cvt.u64.u32 	%rd245, %r661;
	add.s64 	%rd53, %rd29, %rd247;
	shl.b64 	%rd54, %rd53, 3;
	or.b64  	%rd56, %rd54, %rd34;
	shl.b64 	%rd57, %rd56, 10;
	or.b64  	%rd59, %rd57, %rd245;
	add.s64 	%rd61, %rd1, %rd59;
	ld.global.v2.u32 	{%r719, %r720}, [%rd61+832];
$L__BB0_11:
	ld.param.u64 	%rd258, [penstock_decode_param_4];
	ld.param.u64 	%rd257, [penstock_decode_param_3];
	shr.u32 	%r663, %r5, 8;
	cvt.u64.u32 	%rd246, %r663;
	add.s64 	%rd64, %rd29, %rd246;
	shl.b64 	%rd65, %rd64, 3;
	or.b64  	%rd67, %rd65, %rd34;
	shl.b64 	%rd68, %rd67, 6;
	and.b32  	%r261, %r5, 31;
	cvt.u64.u32 	%rd69, %r261;
	or.b64  	%rd70, %rd68, %rd69;
	cvta.to.global.u64 	%rd71, %rd257;
	shl.b64 	%rd72, %rd70, 2;
	add.s64 	%rd73, %rd71, %rd72;
	ld.global.u32 	%r733, [%rd73];
	ld.global.u32 	%r734, [%rd73+128];
	shl.b64 	%rd74, %rd67, 5;
	sub.s64 	%rd75, %rd70, %rd74;
	cvta.to.global.u64 	%rd76, %rd258;
	shl.b64 	%rd77, %rd75, 2;
	add.s64 	%rd78, %rd76, %rd77;
	ld.global.u32 	%r735, [%rd78];
	setp.eq.s32 	%p7, %r210, 0;
	mov.u32 	%r724, 0;
	@%p7 bra 	$L__BB0_13;
	add.s64 	%rd87, %rd37, %rd67;
	shl.b64 	%rd88, %rd87, 5;
	or.b64  	%rd90, %rd88, %rd69;
	shl.b64 	%rd92, %rd90, 2;
	add.s64 	%rd93, %rd76, %rd92;
	ld.global.u32 	%r724, [%rd93];
	bra.uni 	$L__BB0_13;
$L__BB0_2:
$L__BB0_13:
	mov.u64 	%rd7, %rd259;
	mov.u32 	%r75, %r704;
	mov.u32 	%r74, %r703;
	mov.u32 	%r73, %r724;
	mov.u32 	%r72, %r735;
	mov.u32 	%r71, %r734;
	mov.u32 	%r70, %r733;
	mov.u32 	%r69, %r720;
	mov.u32 	%r68, %r719;
	mov.u32 	%r67, %r718;
	mov.u32 	%r66, %r717;
	mov.u32 	%r65, %r716;
	mov.u32 	%r64, %r715;
	mov.u32 	%r63, %r714;
	mov.u32 	%r62, %r713;
	mov.u32 	%r659, %ntid.x;
	shr.u32 	%r658, %r659, 8;
	mov.u32 	%r277, %nctaid.x;
	mul.wide.u32 	%rd96, %r658, %r277;
	add.s64 	%rd259, %rd7, %rd96;
	setp.ge.u64 	%p8, %rd259, %rd28;
	@%p8 bra 	$L__BB0_25;
	shl.b64 	%rd100, %rd259, 2;
	add.s64 	%rd101, %rd31, %rd100;
	ld.global.u32 	%r703, [%rd101];
	ld.global.u32 	%r704, [%rd101+4];
	shl.b64 	%rd105, %rd259, 3;
	or.b64  	%rd106, %rd105, %rd34;
	setp.ge.u64 	%p9, %rd106, %rd37;
	@%p9 bra 	$L__BB0_25;
	shl.b64 	%rd110, %rd106, 10;
	shl.b32 	%r287, %r5, 3;
	and.b32  	%r288, %r287, 248;
	cvt.u64.u32 	%rd111, %r288;
	or.b64  	%rd9, %rd110, %rd111;
	setp.ge.u64 	%p10, %rd9, %rd20;
	add.s64 	%rd10, %rd1, %rd9;
	mov.u32 	%r715, 0;
	mov.u32 	%r713, %r715;
	mov.u32 	%r714, %r715;
	@%p10 bra 	$L__BB0_17;
	ld.global.v2.u32 	{%r713, %r714}, [%rd10+64];
$L__BB0_17:
	add.s64 	%rd113, %rd9, 256;
	setp.ge.u64 	%p11, %rd113, %rd20;
	mov.u32 	%r716, %r715;
	@%p11 bra 	$L__BB0_19;
	ld.global.v2.u32 	{%r715, %r716}, [%rd10+320];
$L__BB0_19:
	add.s64 	%rd114, %rd9, 512;
	setp.ge.u64 	%p12, %rd114, %rd20;
	mov.u32 	%r719, 0;
	mov.u32 	%r717, %r719;
	mov.u32 	%r718, %r719;
	@%p12 bra 	$L__BB0_21;
	ld.global.v2.u32 	{%r717, %r718}, [%rd10+576];
$L__BB0_21:
	add.s64 	%rd115, %rd9, 768;
	setp.ge.u64 	%p13, %rd115, %rd20;
	mov.u32 	%r720, %r719;
	@%p13 bra 	$L__BB0_23;
	ld.global.v2.u32 	{%r719, %r720}, [%rd10+832];
$L__BB0_23:
	ld.param.u64 	%rd255, [penstock_decode_param_4];
	ld.param.u64 	%rd254, [penstock_decode_param_3];
	shl.b64 	%rd119, %rd106, 6;
	and.b32  	%r307, %r5, 31;
	cvt.u64.u32 	%rd120, %r307;
	or.b64  	%rd121, %rd119, %rd120;
	cvta.to.global.u64 	%rd122, %rd254;
	shl.b64 	%rd123, %rd121, 2;
	add.s64 	%rd124, %rd122, %rd123;
	ld.global.u32 	%r733, [%rd124];
	ld.global.u32 	%r734, [%rd124+128];
	shl.b64 	%rd125, %rd106, 5;
	sub.s64 	%rd126, %rd121, %rd125;
	cvta.to.global.u64 	%rd127, %rd255;
	shl.b64 	%rd128, %rd126, 2;
	add.s64 	%rd129, %rd127, %rd128;
	ld.global.u32 	%r735, [%rd129];
	setp.eq.s32 	%p14, %r210, 0;
	mov.u32 	%r724, 0;
	@%p14 bra 	$L__BB0_25;
	add.s64 	%rd135, %rd106, %rd37;
	shl.b64 	%rd136, %rd135, 5;
	or.b64  	%rd138, %rd136, %rd120;
	shl.b64 	%rd140, %rd138, 2;
	add.s64 	%rd141, %rd127, %rd140;
	ld.global.u32 	%r724, [%rd141];
$L__BB0_25:
	ld.param.u64 	%rd243, [penstock_decode_param_8];
	cvt.u32.u64 	%r314, %rd243;
	min.u32 	%r147, %r75, %r314;
	and.b32  	%r148, %r5, 255;
	add.s32 	%r149, %r74, %r148;
	setp.ge.u32 	%p15, %r149, %r147;
	mov.u32 	%r745, 0;
	mov.u32 	%r744, 8192;
	@%p15 bra 	$L__BB0_29;
	cvta.to.global.u64 	%rd142, %rd24;
	mul.wide.u32 	%rd143, %r149, 2;
	add.s64 	%rd144, %rd142, %rd143;
	ld.global.u16 	%rs1, [%rd144];
	setp.gt.u16 	%p16, %rs1, 8191;
	@%p16 bra 	$L__BB0_29;
	shl.b64 	%rd145, %rd7, 13;
	cvt.u64.u16 	%rd146, %rs1;
	add.s64 	%rd12, %rd145, %rd146;
	setp.ge.u64 	%p17, %rd12, %rd20;
	@%p17 bra 	$L__BB0_29;
	cvt.u64.u32 	%rd256, %r149;
	add.s64 	%rd148, %rd1, %rd12;
	ld.global.u8 	%rs3, [%rd148+64];
	cvt.u32.u16 	%r320, %rs3;
	mul.wide.u16 	%r321, %rs3, 256;
	and.b32  	%r322, %r321, 32768;
	cvta.to.global.u64 	%rd149, %rd25;
	add.s64 	%rd150, %rd149, %rd256;
	ld.global.u8 	%r323, [%rd150];
	and.b32  	%r324, %r320, 127;
	bfi.b32 	%r325, %r323, %r324, 7, 8;
	or.b32  	%r745, %r325, %r322;
	cvt.u32.u16 	%r744, %rs1;
$L__BB0_29:
	ld.param.u64 	%rd244, [penstock_decode_param_0];
	shr.u32 	%r326, %r148, 5;
	cvt.u64.u32 	%rd151, %r326;
	shl.b64 	%rd152, %rd7, 3;
	or.b64  	%rd153, %rd152, %rd151;
	shl.b64 	%rd154, %rd153, 10;
	shl.b32 	%r328, %r5, 3;
	and.b32  	%r329, %r328, 248;
	cvt.u64.u32 	%rd155, %r329;
	or.b64  	%rd13, %rd154, %rd155;
	cvta.to.global.u64 	%rd156, %rd244;
	shl.b64 	%rd157, %rd13, 1;
	add.s64 	%rd14, %rd156, %rd157;
	setp.ne.s32 	%p18, %r210, 0;
	@%p18 bra 	$L__BB0_98;
	bra.uni 	$L__BB0_30;
$L__BB0_98:
	setp.ge.u64 	%p55, %rd13, %rd20;
	@%p55 bra 	$L__BB0_166;
	and.b32  	%r451, %r70, 858993459;
	shl.b32 	%r452, %r72, 2;
	and.b32  	%r453, %r452, 1145324612;
	or.b32  	%r454, %r453, %r451;
	and.b32  	%r455, %r454, 30583;
	mov.u32 	%r456, 0;
	prmt.b32 	%r457, %r211, %r212, %r455;
	prmt.b32 	%r458, %r213, %r214, %r455;
	and.b32  	%r459, %r73, 4369;
	mov.u32 	%r460, 65280;
	prmt.b32 	%r461, %r460, %r456, %r459;
	not.b32 	%r462, %r461;
	and.b32  	%r463, %r457, %r462;
	and.b32  	%r464, %r458, %r461;
	or.b32  	%r465, %r463, %r464;
	shr.u32 	%r466, %r465, 1;
	and.b32  	%r467, %r466, 2139062143;
	and.b32  	%r468, %r62, -2139062144;
	or.b32  	%r469, %r467, %r468;
	shl.b32 	%r470, %r465, 7;
	and.b32  	%r471, %r470, -2139062144;
	and.b32  	%r472, %r62, 2139062143;
	or.b32  	%r473, %r471, %r472;
	mov.u32 	%r474, 20800;
	prmt.b32 	%r182, %r473, %r469, %r474;
	mov.u32 	%r475, 29538;
	prmt.b32 	%r183, %r473, %r469, %r475;
	shr.u32 	%r476, %r454, 16;
	prmt.b32 	%r477, %r211, %r212, %r476;
	prmt.b32 	%r478, %r213, %r214, %r476;
	and.b32  	%r479, %r73, 286326784;
	shr.u32 	%r480, %r479, 16;
	prmt.b32 	%r481, %r460, %r456, %r480;
	not.b32 	%r482, %r481;
	and.b32  	%r483, %r477, %r482;
	and.b32  	%r484, %r478, %r481;
	or.b32  	%r485, %r483, %r484;
	shr.u32 	%r486, %r485, 1;
	and.b32  	%r487, %r486, 2139062143;
	and.b32  	%r488, %r63, -2139062144;
	or.b32  	%r489, %r487, %r488;
	shl.b32 	%r490, %r485, 7;
	and.b32  	%r491, %r490, -2139062144;
	and.b32  	%r492, %r63, 2139062143;
	or.b32  	%r493, %r491, %r492;
	prmt.b32 	%r184, %r493, %r489, %r474;
	prmt.b32 	%r185, %r493, %r489, %r475;
	add.s64 	%rd193, %rd13, 8;
	setp.gt.u64 	%p56, %rd193, %rd20;
	@%p56 bra 	$L__BB0_101;
	bra.uni 	$L__BB0_100;
$L__BB0_101:
	st.global.u16 	[%rd14], %r182;
	add.s64 	%rd194, %rd13, 1;
	setp.ge.u64 	%p57, %rd194, %rd20;
	@%p57 bra 	$L__BB0_103;
	shr.u32 	%r494, %r182, 16;
	st.global.u16 	[%rd14+2], %r494;
$L__BB0_103:
	add.s64 	%rd195, %rd13, 2;
	setp.ge.u64 	%p58, %rd195, %rd20;
	@%p58 bra 	$L__BB0_105;
	st.global.u16 	[%rd14+4], %r183;
$L__BB0_105:
	add.s64 	%rd196, %rd13, 3;
	setp.ge.u64 	%p59, %rd196, %rd20;
	@%p59 bra 	$L__BB0_107;
	shr.u32 	%r495, %r183, 16;
	st.global.u16 	[%rd14+6], %r495;
$L__BB0_107:
	add.s64 	%rd197, %rd13, 4;
	setp.ge.u64 	%p60, %rd197, %rd20;
	@%p60 bra 	$L__BB0_109;
	st.global.u16 	[%rd14+8], %r184;
$L__BB0_109:
	add.s64 	%rd198, %rd13, 5;
	setp.ge.u64 	%p61, %rd198, %rd20;
	@%p61 bra 	$L__BB0_111;
	shr.u32 	%r496, %r184, 16;
	st.global.u16 	[%rd14+10], %r496;
$L__BB0_111:
	add.s64 	%rd199, %rd13, 6;
	setp.ge.u64 	%p62, %rd199, %rd20;
	@%p62 bra 	$L__BB0_113;
	st.global.u16 	[%rd14+12], %r185;
$L__BB0_113:
	add.s64 	%rd200, %rd13, 7;
	setp.ge.u64 	%p63, %rd200, %rd20;
	@%p63 bra 	$L__BB0_115;
	shr.u32 	%r497, %r185, 16;
	st.global.u16 	[%rd14+14], %r497;
	bra.uni 	$L__BB0_115;
$L__BB0_30:
	setp.ge.u64 	%p19, %rd13, %rd20;
	@%p19 bra 	$L__BB0_166;
	and.b32  	%r330, %r70, 858993459;
	shl.b32 	%r331, %r72, 2;
	and.b32  	%r332, %r331, 1145324612;
	or.b32  	%r333, %r332, %r330;
	and.b32  	%r334, %r333, 30583;
	prmt.b32 	%r335, %r211, %r212, %r334;
	shr.u32 	%r336, %r335, 1;
	and.b32  	%r337, %r336, 2139062143;
	and.b32  	%r338, %r62, -2139062144;
	or.b32  	%r339, %r337, %r338;
	shl.b32 	%r340, %r335, 7;
	and.b32  	%r341, %r340, -2139062144;
	and.b32  	%r342, %r62, 2139062143;
	or.b32  	%r343, %r341, %r342;
	mov.u32 	%r344, 20800;
	prmt.b32 	%r165, %r343, %r339, %r344;
	mov.u32 	%r345, 29538;
	prmt.b32 	%r166, %r343, %r339, %r345;
	shr.u32 	%r346, %r333, 16;
	prmt.b32 	%r347, %r211, %r212, %r346;
	shr.u32 	%r348, %r347, 1;
	and.b32  	%r349, %r348, 2139062143;
	and.b32  	%r350, %r63, -2139062144;
	or.b32  	%r351, %r349, %r350;
	shl.b32 	%r352, %r347, 7;
	and.b32  	%r353, %r352, -2139062144;
	and.b32  	%r354, %r63, 2139062143;
	or.b32  	%r355, %r353, %r354;
	prmt.b32 	%r167, %r355, %r351, %r344;
	prmt.b32 	%r168, %r355, %r351, %r345;
	add.s64 	%rd158, %rd13, 8;
	setp.gt.u64 	%p20, %rd158, %rd20;
	@%p20 bra 	$L__BB0_33;
	bra.uni 	$L__BB0_32;
$L__BB0_33:
	st.global.u16 	[%rd14], %r165;
	add.s64 	%rd159, %rd13, 1;
	setp.ge.u64 	%p21, %rd159, %rd20;
	@%p21 bra 	$L__BB0_35;
	shr.u32 	%r356, %r165, 16;
	st.global.u16 	[%rd14+2], %r356;
$L__BB0_35:
	add.s64 	%rd160, %rd13, 2;
	setp.ge.u64 	%p22, %rd160, %rd20;
	@%p22 bra 	$L__BB0_37;
	st.global.u16 	[%rd14+4], %r166;
$L__BB0_37:
	add.s64 	%rd161, %rd13, 3;
	setp.ge.u64 	%p23, %rd161, %rd20;
	@%p23 bra 	$L__BB0_39;
	shr.u32 	%r357, %r166, 16;
	st.global.u16 	[%rd14+6], %r357;
$L__BB0_39:
	add.s64 	%rd162, %rd13, 4;
	setp.ge.u64 	%p24, %rd162, %rd20;
	@%p24 bra 	$L__BB0_41;
	st.global.u16 	[%rd14+8], %r167;
$L__BB0_41:
	add.s64 	%rd163, %rd13, 5;
	setp.ge.u64 	%p25, %rd163, %rd20;
	@%p25 bra 	$L__BB0_43;
	shr.u32 	%r358, %r167, 16;
	st.global.u16 	[%rd14+10], %r358;
$L__BB0_43:
	add.s64 	%rd164, %rd13, 6;
	setp.ge.u64 	%p26, %rd164, %rd20;
	@%p26 bra 	$L__BB0_45;
	st.global.u16 	[%rd14+12], %r168;
$L__BB0_45:
	add.s64 	%rd165, %rd13, 7;
	setp.ge.u64 	%p27, %rd165, %rd20;
	@%p27 bra 	$L__BB0_47;
	shr.u32 	%r359, %r168, 16;
	st.global.u16 	[%rd14+14], %r359;
	bra.uni 	$L__BB0_47;
$L__BB0_100:
	st.global.u32 	[%rd14], %r182;
	st.global.u32 	[%rd14+4], %r183;
	st.global.u32 	[%rd14+8], %r184;
	st.global.u32 	[%rd14+12], %r185;
$L__BB0_115:
	add.s64 	%rd201, %rd13, 256;
	setp.ge.u64 	%p64, %rd201, %rd20;
	@%p64 bra 	$L__BB0_166;
	shr.u32 	%r498, %r70, 2;
	and.b32  	%r499, %r498, 858993459;
	shl.b32 	%r500, %r72, 1;
	and.b32  	%r501, %r500, 1145324612;
	or.b32  	%r502, %r501, %r499;
	shr.u32 	%r503, %r73, 17;
	shr.u32 	%r504, %r73, 1;
	and.b32  	%r505, %r502, 30583;
	mov.u32 	%r506, 0;
	prmt.b32 	%r507, %r211, %r212, %r505;
	prmt.b32 	%r508, %r213, %r214, %r505;
	and.b32  	%r509, %r504, 4369;
	mov.u32 	%r510, 65280;
	prmt.b32 	%r511, %r510, %r506, %r509;
	not.b32 	%r512, %r511;
	and.b32  	%r513, %r507, %r512;
	and.b32  	%r514, %r508, %r511;
	or.b32  	%r515, %r513, %r514;
	shr.u32 	%r516, %r515, 1;
	and.b32  	%r517, %r516, 2139062143;
	and.b32  	%r518, %r64, -2139062144;
	or.b32  	%r519, %r517, %r518;
	shl.b32 	%r520, %r515, 7;
	and.b32  	%r521, %r520, -2139062144;
	and.b32  	%r522, %r64, 2139062143;
	or.b32  	%r523, %r521, %r522;
	mov.u32 	%r524, 20800;
	prmt.b32 	%r186, %r523, %r519, %r524;
	mov.u32 	%r525, 29538;
	prmt.b32 	%r187, %r523, %r519, %r525;
	shr.u32 	%r526, %r502, 16;
	prmt.b32 	%r527, %r211, %r212, %r526;
	prmt.b32 	%r528, %r213, %r214, %r526;
	and.b32  	%r529, %r503, 4369;
	prmt.b32 	%r530, %r510, %r506, %r529;
	not.b32 	%r531, %r530;
	and.b32  	%r532, %r527, %r531;
	and.b32  	%r533, %r528, %r530;
	or.b32  	%r534, %r532, %r533;
	shr.u32 	%r535, %r534, 1;
	and.b32  	%r536, %r535, 2139062143;
	and.b32  	%r537, %r65, -2139062144;
	or.b32  	%r538, %r536, %r537;
	shl.b32 	%r539, %r534, 7;
	and.b32  	%r540, %r539, -2139062144;
	and.b32  	%r541, %r65, 2139062143;
	or.b32  	%r542, %r540, %r541;
	prmt.b32 	%r188, %r542, %r538, %r524;
	prmt.b32 	%r189, %r542, %r538, %r525;
	add.s64 	%rd202, %rd13, 264;
	setp.gt.u64 	%p65, %rd202, %rd20;
	@%p65 bra 	$L__BB0_118;
	bra.uni 	$L__BB0_117;
$L__BB0_118:
	st.global.u16 	[%rd14+512], %r186;
	add.s64 	%rd203, %rd13, 257;
	setp.ge.u64 	%p66, %rd203, %rd20;
	@%p66 bra 	$L__BB0_120;
	shr.u32 	%r543, %r186, 16;
	st.global.u16 	[%rd14+514], %r543;
$L__BB0_120:
	add.s64 	%rd204, %rd13, 258;
	setp.ge.u64 	%p67, %rd204, %rd20;
	@%p67 bra 	$L__BB0_122;
	st.global.u16 	[%rd14+516], %r187;
$L__BB0_122:
	add.s64 	%rd205, %rd13, 259;
	setp.ge.u64 	%p68, %rd205, %rd20;
	@%p68 bra 	$L__BB0_124;
	shr.u32 	%r544, %r187, 16;
	st.global.u16 	[%rd14+518], %r544;
$L__BB0_124:
	add.s64 	%rd206, %rd13, 260;
	setp.ge.u64 	%p69, %rd206, %rd20;
	@%p69 bra 	$L__BB0_126;
	st.global.u16 	[%rd14+520], %r188;
$L__BB0_126:
	add.s64 	%rd207, %rd13, 261;
	setp.ge.u64 	%p70, %rd207, %rd20;
	@%p70 bra 	$L__BB0_128;
	shr.u32 	%r545, %r188, 16;
	st.global.u16 	[%rd14+522], %r545;
$L__BB0_128:
	add.s64 	%rd208, %rd13, 262;
	setp.ge.u64 	%p71, %rd208, %rd20;
	@%p71 bra 	$L__BB0_130;
	st.global.u16 	[%rd14+524], %r189;
$L__BB0_130:
	add.s64 	%rd209, %rd13, 263;
	setp.ge.u64 	%p72, %rd209, %rd20;
	@%p72 bra 	$L__BB0_132;
	shr.u32 	%r546, %r189, 16;
	st.global.u16 	[%rd14+526], %r546;
	bra.uni 	$L__BB0_132;
$L__BB0_32:
	st.global.u32 	[%rd14], %r165;
	st.global.u32 	[%rd14+4], %r166;
	st.global.u32 	[%rd14+8], %r167;
	st.global.u32 	[%rd14+12], %r168;
$L__BB0_47:
	add.s64 	%rd166, %rd13, 256;
	setp.ge.u64 	%p28, %rd166, %rd20;
	@%p28 bra 	$L__BB0_166;
	shr.u32 	%r360, %r70, 2;
	and.b32  	%r361, %r360, 858993459;
	shl.b32 	%r362, %r72, 1;
	and.b32  	%r363, %r362, 1145324612;
	or.b32  	%r364, %r363, %r361;
	and.b32  	%r365, %r364, 30583;
	prmt.b32 	%r366, %r211, %r212, %r365;
	shr.u32 	%r367, %r366, 1;
	and.b32  	%r368, %r367, 2139062143;
	and.b32  	%r369, %r64, -2139062144;
	or.b32  	%r370, %r368, %r369;
	shl.b32 	%r371, %r366, 7;
	and.b32  	%r372, %r371, -2139062144;
	and.b32  	%r373, %r64, 2139062143;
	or.b32  	%r374, %r372, %r373;
	mov.u32 	%r375, 20800;
	prmt.b32 	%r169, %r374, %r370, %r375;
	mov.u32 	%r376, 29538;
	prmt.b32 	%r170, %r374, %r370, %r376;
	shr.u32 	%r377, %r364, 16;
	prmt.b32 	%r378, %r211, %r212, %r377;
	shr.u32 	%r379, %r378, 1;
	and.b32  	%r380, %r379, 2139062143;
	and.b32  	%r381, %r65, -2139062144;
	or.b32  	%r382, %r380, %r381;
	shl.b32 	%r383, %r378, 7;
	and.b32  	%r384, %r383, -2139062144;
	and.b32  	%r385, %r65, 2139062143;
	or.b32  	%r386, %r384, %r385;
	prmt.b32 	%r171, %r386, %r382, %r375;
	prmt.b32 	%r172, %r386, %r382, %r376;
	add.s64 	%rd167, %rd13, 264;
	setp.gt.u64 	%p29, %rd167, %rd20;
	@%p29 bra 	$L__BB0_50;
	bra.uni 	$L__BB0_49;
$L__BB0_50:
	st.global.u16 	[%rd14+512], %r169;
	add.s64 	%rd168, %rd13, 257;
	setp.ge.u64 	%p30, %rd168, %rd20;
	@%p30 bra 	$L__BB0_52;
	shr.u32 	%r387, %r169, 16;
	st.global.u16 	[%rd14+514], %r387;
$L__BB0_52:
	add.s64 	%rd169, %rd13, 258;
	setp.ge.u64 	%p31, %rd169, %rd20;
	@%p31 bra 	$L__BB0_54;
	st.global.u16 	[%rd14+516], %r170;
$L__BB0_54:
	add.s64 	%rd170, %rd13, 259;
	setp.ge.u64 	%p32, %rd170, %rd20;
	@%p32 bra 	$L__BB0_56;
	shr.u32 	%r388, %r170, 16;
	st.global.u16 	[%rd14+518], %r388;
$L__BB0_56:
	add.s64 	%rd171, %rd13, 260;
	setp.ge.u64 	%p33, %rd171, %rd20;
	@%p33 bra 	$L__BB0_58;
	st.global.u16 	[%rd14+520], %r171;
$L__BB0_58:
	add.s64 	%rd172, %rd13, 261;
	setp.ge.u64 	%p34, %rd172, %rd20;
	@%p34 bra 	$L__BB0_60;
	shr.u32 	%r389, %r171, 16;
	st.global.u16 	[%rd14+522], %r389;
$L__BB0_60:
	add.s64 	%rd173, %rd13, 262;
	setp.ge.u64 	%p35, %rd173, %rd20;
	@%p35 bra 	$L__BB0_62;
	st.global.u16 	[%rd14+524], %r172;
$L__BB0_62:
	add.s64 	%rd174, %rd13, 263;
	setp.ge.u64 	%p36, %rd174, %rd20;
	@%p36 bra 	$L__BB0_64;
	shr.u32 	%r390, %r172, 16;
	st.global.u16 	[%rd14+526], %r390;
	bra.uni 	$L__BB0_64;
$L__BB0_117:
	st.global.v4.u32 	[%rd14+512], {%r186, %r187, %r188, %r189};
$L__BB0_132:
	add.s64 	%rd210, %rd13, 512;
	setp.ge.u64 	%p73, %rd210, %rd20;
	@%p73 bra 	$L__BB0_166;
	and.b32  	%r547, %r71, 858993459;
	and.b32  	%r548, %r72, 1145324612;
	or.b32  	%r549, %r548, %r547;
	shr.u32 	%r550, %r73, 18;
	shr.u32 	%r551, %r73, 2;
	and.b32  	%r552, %r549, 30583;
	mov.u32 	%r553, 0;
	prmt.b32 	%r554, %r211, %r212, %r552;
	prmt.b32 	%r555, %r213, %r214, %r552;
	and.b32  	%r556, %r551, 4369;
	mov.u32 	%r557, 65280;
	prmt.b32 	%r558, %r557, %r553, %r556;
	not.b32 	%r559, %r558;
	and.b32  	%r560, %r554, %r559;
	and.b32  	%r561, %r555, %r558;
	or.b32  	%r562, %r560, %r561;
	shr.u32 	%r563, %r562, 1;
	and.b32  	%r564, %r563, 2139062143;
	and.b32  	%r565, %r66, -2139062144;
	or.b32  	%r566, %r564, %r565;
	shl.b32 	%r567, %r562, 7;
	and.b32  	%r568, %r567, -2139062144;
	and.b32  	%r569, %r66, 2139062143;
	or.b32  	%r570, %r568, %r569;
	mov.u32 	%r571, 20800;
	prmt.b32 	%r190, %r570, %r566, %r571;
	mov.u32 	%r572, 29538;
	prmt.b32 	%r191, %r570, %r566, %r572;
	shr.u32 	%r573, %r549, 16;
	prmt.b32 	%r574, %r211, %r212, %r573;
	prmt.b32 	%r575, %r213, %r214, %r573;
	and.b32  	%r576, %r550, 4369;
	prmt.b32 	%r577, %r557, %r553, %r576;
	not.b32 	%r578, %r577;
	and.b32  	%r579, %r574, %r578;
	and.b32  	%r580, %r575, %r577;
	or.b32  	%r581, %r579, %r580;
	shr.u32 	%r582, %r581, 1;
	and.b32  	%r583, %r582, 2139062143;
	and.b32  	%r584, %r67, -2139062144;
	or.b32  	%r585, %r583, %r584;
	shl.b32 	%r586, %r581, 7;
	and.b32  	%r587, %r586, -2139062144;
	and.b32  	%r588, %r67, 2139062143;
	or.b32  	%r589, %r587, %r588;
	prmt.b32 	%r192, %r589, %r585, %r571;
	prmt.b32 	%r193, %r589, %r585, %r572;
	add.s64 	%rd211, %rd13, 520;
	setp.gt.u64 	%p74, %rd211, %rd20;
	@%p74 bra 	$L__BB0_135;
	bra.uni 	$L__BB0_134;
$L__BB0_135:
	st.global.u16 	[%rd14+1024], %r190;
	add.s64 	%rd212, %rd13, 513;
	setp.ge.u64 	%p75, %rd212, %rd20;
	@%p75 bra 	$L__BB0_137;
	shr.u32 	%r590, %r190, 16;
	st.global.u16 	[%rd14+1026], %r590;
$L__BB0_137:
	add.s64 	%rd213, %rd13, 514;
	setp.ge.u64 	%p76, %rd213, %rd20;
	@%p76 bra 	$L__BB0_139;
	st.global.u16 	[%rd14+1028], %r191;
$L__BB0_139:
	add.s64 	%rd214, %rd13, 515;
	setp.ge.u64 	%p77, %rd214, %rd20;
	@%p77 bra 	$L__BB0_141;
	shr.u32 	%r591, %r191, 16;
	st.global.u16 	[%rd14+1030], %r591;
$L__BB0_141:
	add.s64 	%rd215, %rd13, 516;
	setp.ge.u64 	%p78, %rd215, %rd20;
	@%p78 bra 	$L__BB0_143;
	st.global.u16 	[%rd14+1032], %r192;
$L__BB0_143:
	add.s64 	%rd216, %rd13, 517;
	setp.ge.u64 	%p79, %rd216, %rd20;
	@%p79 bra 	$L__BB0_145;
	shr.u32 	%r592, %r192, 16;
	st.global.u16 	[%rd14+1034], %r592;
$L__BB0_145:
	add.s64 	%rd217, %rd13, 518;
	setp.ge.u64 	%p80, %rd217, %rd20;
	@%p80 bra 	$L__BB0_147;
	st.global.u16 	[%rd14+1036], %r193;
$L__BB0_147:
	add.s64 	%rd218, %rd13, 519;
	setp.ge.u64 	%p81, %rd218, %rd20;
	@%p81 bra 	$L__BB0_149;
	shr.u32 	%r593, %r193, 16;
	st.global.u16 	[%rd14+1038], %r593;
	bra.uni 	$L__BB0_149;
$L__BB0_49:
	st.global.v4.u32 	[%rd14+512], {%r169, %r170, %r171, %r172};
$L__BB0_64:
	add.s64 	%rd175, %rd13, 512;
	setp.ge.u64 	%p37, %rd175, %rd20;
	@%p37 bra 	$L__BB0_166;
	and.b32  	%r391, %r71, 858993459;
	and.b32  	%r392, %r72, 1145324612;
	or.b32  	%r393, %r392, %r391;
	and.b32  	%r394, %r393, 30583;
	prmt.b32 	%r395, %r211, %r212, %r394;
	shr.u32 	%r396, %r395, 1;
	and.b32  	%r397, %r396, 2139062143;
	and.b32  	%r398, %r66, -2139062144;
	or.b32  	%r399, %r397, %r398;
	shl.b32 	%r400, %r395, 7;
	and.b32  	%r401, %r400, -2139062144;
	and.b32  	%r402, %r66, 2139062143;
	or.b32  	%r403, %r401, %r402;
	mov.u32 	%r404, 20800;
	prmt.b32 	%r173, %r403, %r399, %r404;
	mov.u32 	%r405, 29538;
	prmt.b32 	%r174, %r403, %r399, %r405;
	shr.u32 	%r406, %r393, 16;
	prmt.b32 	%r407, %r211, %r212, %r406;
	shr.u32 	%r408, %r407, 1;
	and.b32  	%r409, %r408, 2139062143;
	and.b32  	%r410, %r67, -2139062144;
	or.b32  	%r411, %r409, %r410;
	shl.b32 	%r412, %r407, 7;
	and.b32  	%r413, %r412, -2139062144;
	and.b32  	%r414, %r67, 2139062143;
	or.b32  	%r415, %r413, %r414;
	prmt.b32 	%r175, %r415, %r411, %r404;
	prmt.b32 	%r176, %r415, %r411, %r405;
	add.s64 	%rd176, %rd13, 520;
	setp.gt.u64 	%p38, %rd176, %rd20;
	@%p38 bra 	$L__BB0_67;
	bra.uni 	$L__BB0_66;
$L__BB0_67:
	st.global.u16 	[%rd14+1024], %r173;
	add.s64 	%rd177, %rd13, 513;
	setp.ge.u64 	%p39, %rd177, %rd20;
	@%p39 bra 	$L__BB0_69;
	shr.u32 	%r416, %r173, 16;
	st.global.u16 	[%rd14+1026], %r416;
$L__BB0_69:
	add.s64 	%rd178, %rd13, 514;
	setp.ge.u64 	%p40, %rd178, %rd20;
	@%p40 bra 	$L__BB0_71;
	st.global.u16 	[%rd14+1028], %r174;
$L__BB0_71:
	add.s64 	%rd179, %rd13, 515;
	setp.ge.u64 	%p41, %rd179, %rd20;
	@%p41 bra 	$L__BB0_73;
	shr.u32 	%r417, %r174, 16;
	st.global.u16 	[%rd14+1030], %r417;
$L__BB0_73:
	add.s64 	%rd180, %rd13, 516;
	setp.ge.u64 	%p42, %rd180, %rd20;
	@%p42 bra 	$L__BB0_75;
	st.global.u16 	[%rd14+1032], %r175;
$L__BB0_75:
	add.s64 	%rd181, %rd13, 517;
	setp.ge.u64 	%p43, %rd181, %rd20;
	@%p43 bra 	$L__BB0_77;
	shr.u32 	%r418, %r175, 16;
	st.global.u16 	[%rd14+1034], %r418;
$L__BB0_77:
	add.s64 	%rd182, %rd13, 518;
	setp.ge.u64 	%p44, %rd182, %rd20;
	@%p44 bra 	$L__BB0_79;
	st.global.u16 	[%rd14+1036], %r176;
$L__BB0_79:
	add.s64 	%rd183, %rd13, 519;
	setp.ge.u64 	%p45, %rd183, %rd20;
	@%p45 bra 	$L__BB0_81;
	shr.u32 	%r419, %r176, 16;
	st.global.u16 	[%rd14+1038], %r419;
	bra.uni 	$L__BB0_81;
$L__BB0_134:
	st.global.v4.u32 	[%rd14+1024], {%r190, %r191, %r192, %r193};
$L__BB0_149:
	add.s64 	%rd219, %rd13, 768;
	setp.ge.u64 	%p82, %rd219, %rd20;
	@%p82 bra 	$L__BB0_166;
	shr.u32 	%r594, %r71, 2;
	and.b32  	%r595, %r594, 858993459;
	shr.u32 	%r596, %r72, 1;
	and.b32  	%r597, %r596, 1145324612;
	or.b32  	%r598, %r597, %r595;
	shr.u32 	%r599, %r73, 19;
	shr.u32 	%r600, %r73, 3;
	and.b32  	%r601, %r598, 30583;
	mov.u32 	%r602, 0;
	prmt.b32 	%r603, %r211, %r212, %r601;
	prmt.b32 	%r604, %r213, %r214, %r601;
	and.b32  	%r605, %r600, 4369;
	mov.u32 	%r606, 65280;
	prmt.b32 	%r607, %r606, %r602, %r605;
	not.b32 	%r608, %r607;
	and.b32  	%r609, %r603, %r608;
	and.b32  	%r610, %r604, %r607;
	or.b32  	%r611, %r609, %r610;
	shr.u32 	%r612, %r611, 1;
	and.b32  	%r613, %r612, 2139062143;
	and.b32  	%r614, %r68, -2139062144;
	or.b32  	%r615, %r613, %r614;
	shl.b32 	%r616, %r611, 7;
	and.b32  	%r617, %r616, -2139062144;
	and.b32  	%r618, %r68, 2139062143;
	or.b32  	%r619, %r617, %r618;
	mov.u32 	%r620, 20800;
	prmt.b32 	%r194, %r619, %r615, %r620;
	mov.u32 	%r621, 29538;
	prmt.b32 	%r195, %r619, %r615, %r621;
	shr.u32 	%r622, %r598, 16;
	prmt.b32 	%r623, %r211, %r212, %r622;
	prmt.b32 	%r624, %r213, %r214, %r622;
	and.b32  	%r625, %r599, 4369;
	prmt.b32 	%r626, %r606, %r602, %r625;
	not.b32 	%r627, %r626;
	and.b32  	%r628, %r623, %r627;
	and.b32  	%r629, %r624, %r626;
	or.b32  	%r630, %r628, %r629;
	shr.u32 	%r631, %r630, 1;
	and.b32  	%r632, %r631, 2139062143;
	and.b32  	%r633, %r69, -2139062144;
	or.b32  	%r634, %r632, %r633;
	shl.b32 	%r635, %r630, 7;
	and.b32  	%r636, %r635, -2139062144;
	and.b32  	%r637, %r69, 2139062143;
	or.b32  	%r638, %r636, %r637;
	prmt.b32 	%r196, %r638, %r634, %r620;
	prmt.b32 	%r197, %r638, %r634, %r621;
	add.s64 	%rd220, %rd13, 776;
	setp.gt.u64 	%p83, %rd220, %rd20;
	@%p83 bra 	$L__BB0_152;
	bra.uni 	$L__BB0_151;
$L__BB0_152:
	st.global.u16 	[%rd14+1536], %r194;
	add.s64 	%rd221, %rd13, 769;
	setp.ge.u64 	%p84, %rd221, %rd20;
	@%p84 bra 	$L__BB0_154;
	shr.u32 	%r639, %r194, 16;
	st.global.u16 	[%rd14+1538], %r639;
$L__BB0_154:
	add.s64 	%rd222, %rd13, 770;
	setp.ge.u64 	%p85, %rd222, %rd20;
	@%p85 bra 	$L__BB0_156;
	st.global.u16 	[%rd14+1540], %r195;
$L__BB0_156:
	add.s64 	%rd223, %rd13, 771;
	setp.ge.u64 	%p86, %rd223, %rd20;
	@%p86 bra 	$L__BB0_158;
	shr.u32 	%r640, %r195, 16;
	st.global.u16 	[%rd14+1542], %r640;
$L__BB0_158:
	add.s64 	%rd224, %rd13, 772;
	setp.ge.u64 	%p87, %rd224, %rd20;
	@%p87 bra 	$L__BB0_160;
	st.global.u16 	[%rd14+1544], %r196;
$L__BB0_160:
	add.s64 	%rd225, %rd13, 773;
	setp.ge.u64 	%p88, %rd225, %rd20;
	@%p88 bra 	$L__BB0_162;
	shr.u32 	%r641, %r196, 16;
	st.global.u16 	[%rd14+1546], %r641;
$L__BB0_162:
	add.s64 	%rd226, %rd13, 774;
	setp.ge.u64 	%p89, %rd226, %rd20;
	@%p89 bra 	$L__BB0_164;
	st.global.u16 	[%rd14+1548], %r197;
$L__BB0_164:
	add.s64 	%rd227, %rd13, 775;
	setp.ge.u64 	%p90, %rd227, %rd20;
	@%p90 bra 	$L__BB0_166;
	shr.u32 	%r642, %r197, 16;
	st.global.u16 	[%rd14+1550], %r642;
	bra.uni 	$L__BB0_166;
$L__BB0_66:
	st.global.v4.u32 	[%rd14+1024], {%r173, %r174, %r175, %r176};
$L__BB0_81:
	add.s64 	%rd184, %rd13, 768;
	setp.ge.u64 	%p46, %rd184, %rd20;
	@%p46 bra 	$L__BB0_166;
	shr.u32 	%r420, %r71, 2;
	and.b32  	%r421, %r420, 858993459;
	shr.u32 	%r422, %r72, 1;
	and.b32  	%r423, %r422, 1145324612;
	or.b32  	%r424, %r423, %r421;
	and.b32  	%r425, %r424, 30583;
	prmt.b32 	%r426, %r211, %r212, %r425;
	shr.u32 	%r427, %r426, 1;
	and.b32  	%r428, %r427, 2139062143;
	and.b32  	%r429, %r68, -2139062144;
	or.b32  	%r430, %r428, %r429;
	shl.b32 	%r431, %r426, 7;
	and.b32  	%r432, %r431, -2139062144;
	and.b32  	%r433, %r68, 2139062143;
	or.b32  	%r434, %r432, %r433;
	mov.u32 	%r435, 20800;
	prmt.b32 	%r177, %r434, %r430, %r435;
	mov.u32 	%r436, 29538;
	prmt.b32 	%r178, %r434, %r430, %r436;
	shr.u32 	%r437, %r424, 16;
	prmt.b32 	%r438, %r211, %r212, %r437;
	shr.u32 	%r439, %r438, 1;
	and.b32  	%r440, %r439, 2139062143;
	and.b32  	%r441, %r69, -2139062144;
	or.b32  	%r442, %r440, %r441;
	shl.b32 	%r443, %r438, 7;
	and.b32  	%r444, %r443, -2139062144;
	and.b32  	%r445, %r69, 2139062143;
	or.b32  	%r446, %r444, %r445;
	prmt.b32 	%r179, %r446, %r442, %r435;
	prmt.b32 	%r180, %r446, %r442, %r436;
	add.s64 	%rd185, %rd13, 776;
	setp.gt.u64 	%p47, %rd185, %rd20;
	@%p47 bra 	$L__BB0_84;
	bra.uni 	$L__BB0_83;
$L__BB0_84:
	st.global.u16 	[%rd14+1536], %r177;
	add.s64 	%rd186, %rd13, 769;
	setp.ge.u64 	%p48, %rd186, %rd20;
	@%p48 bra 	$L__BB0_86;
	shr.u32 	%r447, %r177, 16;
	st.global.u16 	[%rd14+1538], %r447;
$L__BB0_86:
	add.s64 	%rd187, %rd13, 770;
	setp.ge.u64 	%p49, %rd187, %rd20;
	@%p49 bra 	$L__BB0_88;
	st.global.u16 	[%rd14+1540], %r178;
$L__BB0_88:
	add.s64 	%rd188, %rd13, 771;
	setp.ge.u64 	%p50, %rd188, %rd20;
	@%p50 bra 	$L__BB0_90;
	shr.u32 	%r448, %r178, 16;
	st.global.u16 	[%rd14+1542], %r448;
$L__BB0_90:
	add.s64 	%rd189, %rd13, 772;
	setp.ge.u64 	%p51, %rd189, %rd20;
	@%p51 bra 	$L__BB0_92;
	st.global.u16 	[%rd14+1544], %r179;
$L__BB0_92:
	add.s64 	%rd190, %rd13, 773;
	setp.ge.u64 	%p52, %rd190, %rd20;
	@%p52 bra 	$L__BB0_94;
	shr.u32 	%r449, %r179, 16;
	st.global.u16 	[%rd14+1546], %r449;
$L__BB0_94:
	add.s64 	%rd191, %rd13, 774;
	setp.ge.u64 	%p53, %rd191, %rd20;
	@%p53 bra 	$L__BB0_96;
	st.global.u16 	[%rd14+1548], %r180;
$L__BB0_96:
	add.s64 	%rd192, %rd13, 775;
	setp.ge.u64 	%p54, %rd192, %rd20;
	@%p54 bra 	$L__BB0_166;
	shr.u32 	%r450, %r180, 16;
	st.global.u16 	[%rd14+1550], %r450;
	bra.uni 	$L__BB0_166;
$L__BB0_151:
	st.global.v4.u32 	[%rd14+1536], {%r194, %r195, %r196, %r197};
	bra.uni 	$L__BB0_166;
$L__BB0_83:
	st.global.v4.u32 	[%rd14+1536], {%r177, %r178, %r179, %r180};
$L__BB0_166:
	setp.ge.u32 	%p91, %r74, %r147;
	@%p91 bra 	$L__BB0_176;
	and.b32  	%r668, %r5, 255;
	ld.param.u64 	%rd248, [penstock_decode_param_8];
	cvt.u32.u64 	%r667, %rd248;
	min.u32 	%r666, %r75, %r667;
	add.s32 	%r665, %r74, %r668;
	setp.ge.u32 	%p99, %r665, %r666;
	shr.u32 	%r660, %r5, 8;
	add.s32 	%r643, %r660, 1;
	bar.sync %r643, 256;
	@%p99 bra 	$L__BB0_176;
	and.b32  	%r670, %r5, 255;
	add.s32 	%r741, %r74, %r670;
$L__BB0_169:
	setp.gt.u32 	%p93, %r744, 8191;
	@%p93 bra 	$L__BB0_171;
	shl.b64 	%rd252, %rd7, 13;
	ld.param.u64 	%rd250, [penstock_decode_param_0];
	cvta.to.global.u64 	%rd249, %rd250;
	cvt.u64.u32 	%rd228, %r744;
	add.s64 	%rd229, %rd252, %rd228;
	shl.b64 	%rd231, %rd229, 1;
	add.s64 	%rd232, %rd249, %rd231;
	st.global.u16 	[%rd232], %r745;
$L__BB0_171:
	add.s32 	%r741, %r741, 256;
	setp.ge.u32 	%p94, %r741, %r147;
	mov.u32 	%r745, 0;
	mov.u32 	%r744, 8192;
	@%p94 bra 	$L__BB0_175;
	cvta.to.global.u64 	%rd233, %rd24;
	mul.wide.u32 	%rd234, %r741, 2;
	add.s64 	%rd235, %rd233, %rd234;
	ld.global.u16 	%rs2, [%rd235];
	setp.gt.u16 	%p95, %rs2, 8191;
	@%p95 bra 	$L__BB0_175;
	shl.b64 	%rd251, %rd7, 13;
	cvt.u64.u16 	%rd236, %rs2;
	add.s64 	%rd17, %rd251, %rd236;
	setp.ge.u64 	%p96, %rd17, %rd20;
	@%p96 bra 	$L__BB0_175;
	cvt.u64.u32 	%rd253, %r741;
	add.s64 	%rd238, %rd1, %rd17;
	ld.global.u8 	%rs4, [%rd238+64];
	cvt.u32.u16 	%r652, %rs4;
	mul.wide.u16 	%r653, %rs4, 256;
	and.b32  	%r654, %r653, 32768;
	cvta.to.global.u64 	%rd239, %rd25;
	add.s64 	%rd240, %rd239, %rd253;
	ld.global.u8 	%r655, [%rd240];
	and.b32  	%r656, %r652, 127;
	bfi.b32 	%r657, %r655, %r656, 7, 8;
	or.b32  	%r745, %r657, %r654;
	cvt.u32.u16 	%r744, %rs2;
$L__BB0_175:
	setp.lt.u32 	%p97, %r741, %r147;
	@%p97 bra 	$L__BB0_169;
$L__BB0_176:
	setp.lt.u64 	%p98, %rd259, %rd28;
	@%p98 bra 	$L__BB0_13;
$L__BB0_177:
	ret;
}
)ptx";

}  // namespace penstock::driver::cuda
