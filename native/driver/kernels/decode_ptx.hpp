// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from decode.cu; not to be edited. Its SHA-256:
// bbb3f58c77b5acd92c62c5d5c33f54f40834e6ff9a25285c46a41b8a36dab9c1
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
	.param .u64 penstock_decode_param_6
)
{
	.reg .pred 	%p<44>;
	.reg .b16 	%rs<8>;
	.reg .b32 	%r<359>;
	.reg .b64 	%rd<48>;
	.shared .align 4 .b8 _ZZ15penstock_decodeE3low[64];
	.shared .align 4 .b8 _ZZ15penstock_decodeE4high[64];
	ld.param.u64 	%rd18, [penstock_decode_param_0];
	ld.param.u64 	%rd19, [penstock_decode_param_1];
	ld.param.u64 	%rd14, [penstock_decode_param_2];
	ld.param.u64 	%rd20, [penstock_decode_param_3];
	ld.param.u64 	%rd15, [penstock_decode_param_4];
	ld.param.u64 	%rd16, [penstock_decode_param_5];
	ld.param.u64 	%rd17, [penstock_decode_param_6];
	cvta.to.global.u64 	%rd1, %rd20;
	cvta.to.global.u64 	%rd2, %rd18;
	cvta.to.global.u64 	%rd3, %rd19;
	mov.u32 	%r1, %tid.x;
	setp.gt.u32 	%p1, %r1, 15;
	@%p1 bra 	$L__BB0_2;
	cvt.u64.u32 	%rd21, %r1;
	add.s64 	%rd22, %rd3, %rd21;
	ld.global.u8 	%rs1, [%rd22+32];
	cvt.u32.u16 	%r33, %rs1;
	mul.wide.u16 	%r34, %rs1, 128;
	shl.b32 	%r35, %r1, 2;
	mov.u32 	%r36, _ZZ15penstock_decodeE3low;
	add.s32 	%r37, %r36, %r35;
	st.shared.u32 	[%r37], %r34;
	shl.b32 	%r38, %r33, 23;
	mov.u32 	%r39, _ZZ15penstock_decodeE4high;
	add.s32 	%r40, %r39, %r35;
	st.shared.u32 	[%r40], %r38;
$L__BB0_2:
	bar.sync 	0;
	add.s64 	%rd23, %rd14, 8191;
	shr.u64 	%rd4, %rd23, 13;
	mov.u32 	%r41, %ctaid.x;
	cvt.u64.u32 	%rd47, %r41;
	setp.le.u64 	%p2, %rd4, %rd47;
	@%p2 bra 	$L__BB0_78;
	shl.b32 	%r2, %r1, 4;
	mov.u32 	%r3, %ntid.x;
	shl.b32 	%r4, %r3, 4;
	cvt.u32.u64 	%r5, %rd17;
	mov.u32 	%r42, %nctaid.x;
	cvt.u64.u32 	%rd6, %r42;
	cvta.to.global.u64 	%rd7, %rd16;
	cvta.to.global.u64 	%rd8, %rd15;
$L__BB0_4:
	shl.b64 	%rd10, %rd47, 13;
	sub.s64 	%rd24, %rd14, %rd10;
	min.u64 	%rd25, %rd24, 8192;
	cvt.u32.u64 	%r6, %rd25;
	setp.ge.u32 	%p3, %r2, %r6;
	@%p3 bra 	$L__BB0_72;
	mov.u32 	%r357, %r2;
$L__BB0_6:
	.pragma "nounroll";
	cvt.u64.u32 	%rd26, %r357;
	add.s64 	%rd27, %rd10, %rd26;
	add.s64 	%rd28, %rd3, %rd27;
	ld.global.v4.u32 	{%r43, %r44, %r45, %r46}, [%rd28+64];
	mov.u32 	%r48, 0;
	shr.u64 	%rd29, %rd27, 1;
	add.s64 	%rd30, %rd1, %rd29;
	ld.global.v2.u32 	{%r52, %r53}, [%rd30];
	mov.u32 	%r56, 16704;
	prmt.b32 	%r57, %r43, %r48, %r56;
	shl.b32 	%r58, %r57, 8;
	and.b32  	%r59, %r58, -2147450880;
	and.b32  	%r60, %r57, 8323199;
	shl.b32 	%r61, %r52, 2;
	and.b32  	%r62, %r61, 60;
	mov.u32 	%r63, _ZZ15penstock_decodeE3low;
	add.s32 	%r64, %r63, %r62;
	shr.u32 	%r65, %r52, 2;
	and.b32  	%r66, %r65, 60;
	mov.u32 	%r67, _ZZ15penstock_decodeE4high;
	add.s32 	%r68, %r67, %r66;
	ld.shared.u32 	%r69, [%r64];
	or.b32  	%r70, %r60, %r69;
	ld.shared.u32 	%r71, [%r68];
	or.b32  	%r72, %r70, %r71;
	or.b32  	%r8, %r72, %r59;
	shr.u32 	%r73, %r43, 16;
	prmt.b32 	%r74, %r73, %r48, %r56;
	shl.b32 	%r75, %r74, 8;
	and.b32  	%r76, %r75, -2147450880;
	and.b32  	%r77, %r74, 8323199;
	shr.u32 	%r78, %r52, 6;
	and.b32  	%r79, %r78, 60;
	add.s32 	%r80, %r63, %r79;
	shr.u32 	%r81, %r52, 10;
	and.b32  	%r82, %r81, 60;
	add.s32 	%r83, %r67, %r82;
	ld.shared.u32 	%r84, [%r80];
	or.b32  	%r85, %r84, %r77;
	or.b32  	%r86, %r85, %r76;
	ld.shared.u32 	%r87, [%r83];
	or.b32  	%r9, %r86, %r87;
	prmt.b32 	%r88, %r44, %r48, %r56;
	shl.b32 	%r89, %r88, 8;
	and.b32  	%r90, %r89, -2147450880;
	and.b32  	%r91, %r88, 8323199;
	or.b32  	%r92, %r90, %r91;
	shr.u32 	%r93, %r52, 14;
	and.b32  	%r94, %r93, 60;
	add.s32 	%r95, %r63, %r94;
	ld.shared.u32 	%r96, [%r95];
	or.b32  	%r97, %r92, %r96;
	shr.u32 	%r98, %r52, 18;
	and.b32  	%r99, %r98, 60;
	add.s32 	%r100, %r67, %r99;
	ld.shared.u32 	%r101, [%r100];
	or.b32  	%r10, %r97, %r101;
	shr.u32 	%r102, %r44, 16;
	prmt.b32 	%r103, %r102, %r48, %r56;
	shl.b32 	%r104, %r103, 8;
	and.b32  	%r105, %r104, -2147450880;
	and.b32  	%r106, %r103, 8323199;
	or.b32  	%r107, %r105, %r106;
	shr.u32 	%r108, %r52, 22;
	and.b32  	%r109, %r108, 60;
	add.s32 	%r110, %r63, %r109;
	ld.shared.u32 	%r111, [%r110];
	or.b32  	%r112, %r107, %r111;
	shr.u32 	%r113, %r52, 26;
	and.b32  	%r114, %r113, 60;
	add.s32 	%r115, %r67, %r114;
	ld.shared.u32 	%r116, [%r115];
	or.b32  	%r11, %r112, %r116;
	prmt.b32 	%r117, %r45, %r48, %r56;
	shl.b32 	%r118, %r117, 8;
	and.b32  	%r119, %r118, -2147450880;
	and.b32  	%r120, %r117, 8323199;
	or.b32  	%r121, %r119, %r120;
	shl.b32 	%r122, %r53, 2;
	and.b32  	%r123, %r122, 60;
	add.s32 	%r124, %r63, %r123;
	ld.shared.u32 	%r125, [%r124];
	or.b32  	%r126, %r121, %r125;
	shr.u32 	%r127, %r53, 2;
	and.b32  	%r128, %r127, 60;
	add.s32 	%r129, %r67, %r128;
	ld.shared.u32 	%r130, [%r129];
	or.b32  	%r12, %r126, %r130;
	shr.u32 	%r131, %r45, 16;
	prmt.b32 	%r132, %r131, %r48, %r56;
	shl.b32 	%r133, %r132, 8;
	and.b32  	%r134, %r133, -2147450880;
	and.b32  	%r135, %r132, 8323199;
	or.b32  	%r136, %r134, %r135;
	shr.u32 	%r137, %r53, 6;
	and.b32  	%r138, %r137, 60;
	add.s32 	%r139, %r63, %r138;
	ld.shared.u32 	%r140, [%r139];
	or.b32  	%r141, %r136, %r140;
	shr.u32 	%r142, %r53, 10;
	and.b32  	%r143, %r142, 60;
	add.s32 	%r144, %r67, %r143;
	ld.shared.u32 	%r145, [%r144];
	or.b32  	%r13, %r141, %r145;
	prmt.b32 	%r146, %r46, %r48, %r56;
	shl.b32 	%r147, %r146, 8;
	and.b32  	%r148, %r147, -2147450880;
	and.b32  	%r149, %r146, 8323199;
	or.b32  	%r150, %r148, %r149;
	shr.u32 	%r151, %r53, 14;
	and.b32  	%r152, %r151, 60;
	add.s32 	%r153, %r63, %r152;
	ld.shared.u32 	%r154, [%r153];
	or.b32  	%r155, %r150, %r154;
	shr.u32 	%r156, %r53, 18;
	and.b32  	%r157, %r156, 60;
	add.s32 	%r158, %r67, %r157;
	ld.shared.u32 	%r159, [%r158];
	or.b32  	%r14, %r155, %r159;
	shr.u32 	%r160, %r46, 16;
	prmt.b32 	%r161, %r160, %r48, %r56;
	shl.b32 	%r162, %r161, 8;
	and.b32  	%r163, %r162, -2147450880;
	and.b32  	%r164, %r161, 8323199;
	or.b32  	%r165, %r163, %r164;
	shr.u32 	%r166, %r53, 22;
	and.b32  	%r167, %r166, 60;
	add.s32 	%r168, %r63, %r167;
	ld.shared.u32 	%r169, [%r168];
	or.b32  	%r170, %r165, %r169;
	shr.u32 	%r171, %r53, 26;
	and.b32  	%r172, %r171, 60;
	add.s32 	%r173, %r67, %r172;
	ld.shared.u32 	%r174, [%r173];
	or.b32  	%r15, %r170, %r174;
	shl.b64 	%rd31, %rd27, 1;
	add.s64 	%rd11, %rd2, %rd31;
	add.s32 	%r175, %r357, 16;
	setp.gt.u32 	%p4, %r175, %r6;
	@%p4 bra 	$L__BB0_8;
	bra.uni 	$L__BB0_7;
$L__BB0_8:
	st.global.u16 	[%rd11], %r8;
	add.s32 	%r176, %r357, 1;
	setp.ge.u32 	%p5, %r176, %r6;
	@%p5 bra 	$L__BB0_10;
	shr.u32 	%r177, %r8, 16;
	st.global.u16 	[%rd11+2], %r177;
$L__BB0_10:
	add.s32 	%r178, %r357, 2;
	setp.ge.u32 	%p6, %r178, %r6;
	@%p6 bra 	$L__BB0_12;
	st.global.u16 	[%rd11+4], %r9;
$L__BB0_12:
	add.s32 	%r179, %r357, 3;
	setp.ge.u32 	%p7, %r179, %r6;
	@%p7 bra 	$L__BB0_14;
	shr.u32 	%r180, %r9, 16;
	st.global.u16 	[%rd11+6], %r180;
$L__BB0_14:
	add.s32 	%r181, %r357, 4;
	setp.ge.u32 	%p8, %r181, %r6;
	@%p8 bra 	$L__BB0_16;
	st.global.u16 	[%rd11+8], %r10;
$L__BB0_16:
	add.s32 	%r182, %r357, 5;
	setp.ge.u32 	%p9, %r182, %r6;
	@%p9 bra 	$L__BB0_18;
	shr.u32 	%r183, %r10, 16;
	st.global.u16 	[%rd11+10], %r183;
$L__BB0_18:
	add.s32 	%r184, %r357, 6;
	setp.ge.u32 	%p10, %r184, %r6;
	@%p10 bra 	$L__BB0_20;
	st.global.u16 	[%rd11+12], %r11;
$L__BB0_20:
	add.s32 	%r185, %r357, 7;
	setp.ge.u32 	%p11, %r185, %r6;
	@%p11 bra 	$L__BB0_22;
	shr.u32 	%r186, %r11, 16;
	st.global.u16 	[%rd11+14], %r186;
$L__BB0_22:
	add.s32 	%r187, %r357, 8;
	setp.ge.u32 	%p12, %r187, %r6;
	@%p12 bra 	$L__BB0_24;
	st.global.u16 	[%rd11+16], %r12;
$L__BB0_24:
	add.s32 	%r188, %r357, 9;
	setp.ge.u32 	%p13, %r188, %r6;
	@%p13 bra 	$L__BB0_26;
	shr.u32 	%r189, %r12, 16;
	st.global.u16 	[%rd11+18], %r189;
$L__BB0_26:
	add.s32 	%r190, %r357, 10;
	setp.ge.u32 	%p14, %r190, %r6;
	@%p14 bra 	$L__BB0_28;
	st.global.u16 	[%rd11+20], %r13;
$L__BB0_28:
	add.s32 	%r191, %r357, 11;
	setp.ge.u32 	%p15, %r191, %r6;
	@%p15 bra 	$L__BB0_30;
	shr.u32 	%r192, %r13, 16;
	st.global.u16 	[%rd11+22], %r192;
$L__BB0_30:
	add.s32 	%r193, %r357, 12;
	setp.ge.u32 	%p16, %r193, %r6;
	@%p16 bra 	$L__BB0_32;
	st.global.u16 	[%rd11+24], %r14;
$L__BB0_32:
	add.s32 	%r194, %r357, 13;
	setp.ge.u32 	%p17, %r194, %r6;
	@%p17 bra 	$L__BB0_34;
	shr.u32 	%r195, %r14, 16;
	st.global.u16 	[%rd11+26], %r195;
$L__BB0_34:
	add.s32 	%r196, %r357, 14;
	setp.ge.u32 	%p18, %r196, %r6;
	@%p18 bra 	$L__BB0_36;
	st.global.u16 	[%rd11+28], %r15;
$L__BB0_36:
	add.s32 	%r197, %r357, 15;
	setp.ge.u32 	%p19, %r197, %r6;
	@%p19 bra 	$L__BB0_38;
	shr.u32 	%r198, %r15, 16;
	st.global.u16 	[%rd11+30], %r198;
	bra.uni 	$L__BB0_38;
$L__BB0_7:
	st.global.u32 	[%rd11], %r8;
	st.global.u32 	[%rd11+4], %r9;
	st.global.u32 	[%rd11+8], %r10;
	st.global.u32 	[%rd11+12], %r11;
	st.global.u32 	[%rd11+16], %r12;
	st.global.u32 	[%rd11+20], %r13;
	st.global.u32 	[%rd11+24], %r14;
	st.global.u32 	[%rd11+28], %r15;
$L__BB0_38:
	add.s32 	%r16, %r357, %r4;
	setp.ge.u32 	%p20, %r16, %r6;
	@%p20 bra 	$L__BB0_72;
	cvt.u64.u32 	%rd32, %r16;
	add.s64 	%rd33, %rd10, %rd32;
	add.s64 	%rd34, %rd3, %rd33;
	ld.global.v4.u32 	{%r199, %r200, %r201, %r202}, [%rd34+64];
	mov.u32 	%r204, 0;
	shr.u64 	%rd35, %rd33, 1;
	add.s64 	%rd36, %rd1, %rd35;
	ld.global.v2.u32 	{%r208, %r209}, [%rd36];
	mov.u32 	%r212, 16704;
	prmt.b32 	%r213, %r199, %r204, %r212;
	shl.b32 	%r214, %r213, 8;
	and.b32  	%r215, %r214, -2147450880;
	and.b32  	%r216, %r213, 8323199;
	shl.b32 	%r217, %r208, 2;
	and.b32  	%r218, %r217, 60;
	add.s32 	%r220, %r63, %r218;
	shr.u32 	%r221, %r208, 2;
	and.b32  	%r222, %r221, 60;
	add.s32 	%r224, %r67, %r222;
	ld.shared.u32 	%r225, [%r220];
	or.b32  	%r226, %r216, %r225;
	ld.shared.u32 	%r227, [%r224];
	or.b32  	%r228, %r226, %r227;
	or.b32  	%r17, %r228, %r215;
	shr.u32 	%r229, %r199, 16;
	prmt.b32 	%r230, %r229, %r204, %r212;
	shl.b32 	%r231, %r230, 8;
	and.b32  	%r232, %r231, -2147450880;
	and.b32  	%r233, %r230, 8323199;
	shr.u32 	%r234, %r208, 6;
	and.b32  	%r235, %r234, 60;
	add.s32 	%r236, %r63, %r235;
	shr.u32 	%r237, %r208, 10;
	and.b32  	%r238, %r237, 60;
	add.s32 	%r239, %r67, %r238;
	ld.shared.u32 	%r240, [%r236];
	or.b32  	%r241, %r240, %r233;
	or.b32  	%r242, %r241, %r232;
	ld.shared.u32 	%r243, [%r239];
	or.b32  	%r18, %r242, %r243;
	prmt.b32 	%r244, %r200, %r204, %r212;
	shl.b32 	%r245, %r244, 8;
	and.b32  	%r246, %r245, -2147450880;
	and.b32  	%r247, %r244, 8323199;
	or.b32  	%r248, %r246, %r247;
	shr.u32 	%r249, %r208, 14;
	and.b32  	%r250, %r249, 60;
	add.s32 	%r251, %r63, %r250;
	ld.shared.u32 	%r252, [%r251];
	or.b32  	%r253, %r248, %r252;
	shr.u32 	%r254, %r208, 18;
	and.b32  	%r255, %r254, 60;
	add.s32 	%r256, %r67, %r255;
	ld.shared.u32 	%r257, [%r256];
	or.b32  	%r19, %r253, %r257;
	shr.u32 	%r258, %r200, 16;
	prmt.b32 	%r259, %r258, %r204, %r212;
	shl.b32 	%r260, %r259, 8;
	and.b32  	%r261, %r260, -2147450880;
	and.b32  	%r262, %r259, 8323199;
	or.b32  	%r263, %r261, %r262;
	shr.u32 	%r264, %r208, 22;
	and.b32  	%r265, %r264, 60;
	add.s32 	%r266, %r63, %r265;
	ld.shared.u32 	%r267, [%r266];
	or.b32  	%r268, %r263, %r267;
	shr.u32 	%r269, %r208, 26;
	and.b32  	%r270, %r269, 60;
	add.s32 	%r271, %r67, %r270;
	ld.shared.u32 	%r272, [%r271];
	or.b32  	%r20, %r268, %r272;
	prmt.b32 	%r273, %r201, %r204, %r212;
	shl.b32 	%r274, %r273, 8;
	and.b32  	%r275, %r274, -2147450880;
	and.b32  	%r276, %r273, 8323199;
	or.b32  	%r277, %r275, %r276;
	shl.b32 	%r278, %r209, 2;
	and.b32  	%r279, %r278, 60;
	add.s32 	%r280, %r63, %r279;
	ld.shared.u32 	%r281, [%r280];
	or.b32  	%r282, %r277, %r281;
	shr.u32 	%r283, %r209, 2;
	and.b32  	%r284, %r283, 60;
	add.s32 	%r285, %r67, %r284;
	ld.shared.u32 	%r286, [%r285];
	or.b32  	%r21, %r282, %r286;
	shr.u32 	%r287, %r201, 16;
	prmt.b32 	%r288, %r287, %r204, %r212;
	shl.b32 	%r289, %r288, 8;
	and.b32  	%r290, %r289, -2147450880;
	and.b32  	%r291, %r288, 8323199;
	or.b32  	%r292, %r290, %r291;
	shr.u32 	%r293, %r209, 6;
	and.b32  	%r294, %r293, 60;
	add.s32 	%r295, %r63, %r294;
	ld.shared.u32 	%r296, [%r295];
	or.b32  	%r297, %r292, %r296;
	shr.u32 	%r298, %r209, 10;
	and.b32  	%r299, %r298, 60;
	add.s32 	%r300, %r67, %r299;
	ld.shared.u32 	%r301, [%r300];
	or.b32  	%r22, %r297, %r301;
	prmt.b32 	%r302, %r202, %r204, %r212;
	shl.b32 	%r303, %r302, 8;
	and.b32  	%r304, %r303, -2147450880;
	and.b32  	%r305, %r302, 8323199;
	or.b32  	%r306, %r304, %r305;
	shr.u32 	%r307, %r209, 14;
	and.b32  	%r308, %r307, 60;
	add.s32 	%r309, %r63, %r308;
	ld.shared.u32 	%r310, [%r309];
	or.b32  	%r311, %r306, %r310;
	shr.u32 	%r312, %r209, 18;
	and.b32  	%r313, %r312, 60;
	add.s32 	%r314, %r67, %r313;
	ld.shared.u32 	%r315, [%r314];
	or.b32  	%r23, %r311, %r315;
	shr.u32 	%r316, %r202, 16;
	prmt.b32 	%r317, %r316, %r204, %r212;
	shl.b32 	%r318, %r317, 8;
	and.b32  	%r319, %r318, -2147450880;
	and.b32  	%r320, %r317, 8323199;
	or.b32  	%r321, %r319, %r320;
	shr.u32 	%r322, %r209, 22;
	and.b32  	%r323, %r322, 60;
	add.s32 	%r324, %r63, %r323;
	ld.shared.u32 	%r325, [%r324];
	or.b32  	%r326, %r321, %r325;
	shr.u32 	%r327, %r209, 26;
	and.b32  	%r328, %r327, 60;
	add.s32 	%r329, %r67, %r328;
	ld.shared.u32 	%r330, [%r329];
	or.b32  	%r24, %r326, %r330;
	shl.b64 	%rd37, %rd33, 1;
	add.s64 	%rd12, %rd2, %rd37;
	add.s32 	%r331, %r16, 16;
	setp.gt.u32 	%p21, %r331, %r6;
	@%p21 bra 	$L__BB0_41;
	bra.uni 	$L__BB0_40;
$L__BB0_41:
	st.global.u16 	[%rd12], %r17;
	add.s32 	%r332, %r16, 1;
	setp.ge.u32 	%p22, %r332, %r6;
	@%p22 bra 	$L__BB0_43;
	shr.u32 	%r333, %r17, 16;
	st.global.u16 	[%rd12+2], %r333;
$L__BB0_43:
	add.s32 	%r334, %r16, 2;
	setp.ge.u32 	%p23, %r334, %r6;
	@%p23 bra 	$L__BB0_45;
	st.global.u16 	[%rd12+4], %r18;
$L__BB0_45:
	add.s32 	%r335, %r16, 3;
	setp.ge.u32 	%p24, %r335, %r6;
	@%p24 bra 	$L__BB0_47;
	shr.u32 	%r336, %r18, 16;
	st.global.u16 	[%rd12+6], %r336;
$L__BB0_47:
	add.s32 	%r337, %r16, 4;
	setp.ge.u32 	%p25, %r337, %r6;
	@%p25 bra 	$L__BB0_49;
	st.global.u16 	[%rd12+8], %r19;
$L__BB0_49:
	add.s32 	%r338, %r16, 5;
	setp.ge.u32 	%p26, %r338, %r6;
	@%p26 bra 	$L__BB0_51;
	shr.u32 	%r339, %r19, 16;
	st.global.u16 	[%rd12+10], %r339;
$L__BB0_51:
	add.s32 	%r340, %r16, 6;
	setp.ge.u32 	%p27, %r340, %r6;
	@%p27 bra 	$L__BB0_53;
	st.global.u16 	[%rd12+12], %r20;
$L__BB0_53:
	add.s32 	%r341, %r16, 7;
	setp.ge.u32 	%p28, %r341, %r6;
	@%p28 bra 	$L__BB0_55;
	shr.u32 	%r342, %r20, 16;
	st.global.u16 	[%rd12+14], %r342;
$L__BB0_55:
	add.s32 	%r343, %r16, 8;
	setp.ge.u32 	%p29, %r343, %r6;
	@%p29 bra 	$L__BB0_57;
	st.global.u16 	[%rd12+16], %r21;
$L__BB0_57:
	add.s32 	%r344, %r16, 9;
	setp.ge.u32 	%p30, %r344, %r6;
	@%p30 bra 	$L__BB0_59;
	shr.u32 	%r345, %r21, 16;
	st.global.u16 	[%rd12+18], %r345;
$L__BB0_59:
	add.s32 	%r346, %r16, 10;
	setp.ge.u32 	%p31, %r346, %r6;
	@%p31 bra 	$L__BB0_61;
	st.global.u16 	[%rd12+20], %r22;
$L__BB0_61:
	add.s32 	%r347, %r16, 11;
	setp.ge.u32 	%p32, %r347, %r6;
	@%p32 bra 	$L__BB0_63;
	shr.u32 	%r348, %r22, 16;
	st.global.u16 	[%rd12+22], %r348;
$L__BB0_63:
	add.s32 	%r349, %r16, 12;
	setp.ge.u32 	%p33, %r349, %r6;
	@%p33 bra 	$L__BB0_65;
	st.global.u16 	[%rd12+24], %r23;
$L__BB0_65:
	add.s32 	%r350, %r16, 13;
	setp.ge.u32 	%p34, %r350, %r6;
	@%p34 bra 	$L__BB0_67;
	shr.u32 	%r351, %r23, 16;
	st.global.u16 	[%rd12+26], %r351;
$L__BB0_67:
	add.s32 	%r352, %r16, 14;
	setp.ge.u32 	%p35, %r352, %r6;
	@%p35 bra 	$L__BB0_69;
	st.global.u16 	[%rd12+28], %r24;
$L__BB0_69:
	add.s32 	%r353, %r16, 15;
	setp.ge.u32 	%p36, %r353, %r6;
	@%p36 bra 	$L__BB0_71;
	shr.u32 	%r354, %r24, 16;
	st.global.u16 	[%rd12+30], %r354;
	bra.uni 	$L__BB0_71;
$L__BB0_40:
	st.global.u32 	[%rd12], %r17;
	st.global.u32 	[%rd12+4], %r18;
	st.global.u32 	[%rd12+8], %r19;
	st.global.u32 	[%rd12+12], %r20;
	st.global.u32 	[%rd12+16], %r21;
	st.global.u32 	[%rd12+20], %r22;
	st.global.u32 	[%rd12+24], %r23;
	st.global.u32 	[%rd12+28], %r24;
$L__BB0_71:
	add.s32 	%r357, %r16, %r4;
	setp.lt.u32 	%p37, %r357, %r6;
	@%p37 bra 	$L__BB0_6;
$L__BB0_72:
	shl.b64 	%rd38, %rd47, 2;
	add.s64 	%rd39, %rd8, %rd38;
	ld.global.u32 	%r355, [%rd39+4];
	cvt.u64.u32 	%rd40, %r355;
	setp.lt.u64 	%p38, %rd40, %rd17;
	selp.b32 	%r26, %r355, %r5, %p38;
	ld.global.u32 	%r27, [%rd39];
	setp.ge.u32 	%p39, %r27, %r26;
	@%p39 bra 	$L__BB0_77;
	bar.sync 	0;
	add.s32 	%r358, %r27, %r1;
	setp.ge.u32 	%p40, %r358, %r26;
	@%p40 bra 	$L__BB0_77;
$L__BB0_74:
	mul.wide.u32 	%rd41, %r358, 4;
	add.s64 	%rd42, %rd7, %rd41;
	ld.global.u32 	%r30, [%rd42];
	and.b32  	%r31, %r30, 65535;
	setp.ge.u32 	%p41, %r31, %r6;
	@%p41 bra 	$L__BB0_76;
	cvt.u64.u32 	%rd43, %r31;
	add.s64 	%rd44, %rd10, %rd43;
	shl.b64 	%rd45, %rd44, 1;
	add.s64 	%rd46, %rd2, %rd45;
	ld.global.u16 	%rs2, [%rd46];
	and.b16  	%rs3, %rs2, -32641;
	shr.u32 	%r356, %r30, 16;
	cvt.u16.u32 	%rs4, %r356;
	shl.b16 	%rs5, %rs4, 7;
	and.b16  	%rs6, %rs5, 32640;
	or.b16  	%rs7, %rs3, %rs6;
	st.global.u16 	[%rd46], %rs7;
$L__BB0_76:
	add.s32 	%r358, %r358, %r3;
	setp.lt.u32 	%p42, %r358, %r26;
	@%p42 bra 	$L__BB0_74;
$L__BB0_77:
	add.s64 	%rd47, %rd47, %rd6;
	setp.lt.u64 	%p43, %rd47, %rd4;
	@%p43 bra 	$L__BB0_4;
$L__BB0_78:
	ret;
}
)ptx";

}  // namespace penstock::driver::cuda
