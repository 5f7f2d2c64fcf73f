// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from encode.cu; not to be edited. Its SHA-256:
// c74e4a22c0cead0db33b6c26596a1f1edb5a85e7e605731d0d7b463874c0c58d
#pragma once

namespace penstock::driver::cuda {

inline constexpr char kEncodePtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry penstock_survey(
	.param .u64 penstock_survey_param_0,
	.param .u64 penstock_survey_param_1,
	.param .u64 penstock_survey_param_2
)
{
	.reg .pred 	%p<13>;
	.reg .b16 	%rs<15>;
	.reg .b32 	%r<130>;
	.reg .b64 	%rd<47>;
	.shared .align 4 .b8 _ZZ15penstock_surveyE5found[8192];
	ld.param.u64 	%rd24, [penstock_survey_param_0];
	ld.param.u64 	%rd26, [penstock_survey_param_1];
	ld.param.u64 	%rd25, [penstock_survey_param_2];
	cvta.to.global.u64 	%rd1, %rd26;
	mov.u32 	%r1, %tid.x;
	setp.gt.u32 	%p1, %r1, 2047;
	@%p1 bra 	$L__BB0_3;
	mov.u32 	%r7, _ZZ15penstock_surveyE5found;
	mov.u32 	%r129, %r1;
$L__BB0_2:
	shl.b32 	%r6, %r129, 2;
	add.s32 	%r8, %r7, %r6;
	mov.u32 	%r9, 0;
	st.shared.u32 	[%r8], %r9;
	add.s32 	%r129, %r129, 256;
	setp.lt.u32 	%p2, %r129, 2048;
	@%p2 bra 	$L__BB0_2;
$L__BB0_3:
	bar.sync 	0;
	shr.u32 	%r4, %r1, 5;
	mov.u32 	%r10, %ctaid.x;
	cvt.u64.u32 	%rd2, %r10;
	mul.wide.u32 	%rd27, %r10, 256;
	cvt.u64.u32 	%rd3, %r1;
	add.s64 	%rd28, %rd27, %rd3;
	shl.b64 	%rd43, %rd28, 3;
	setp.ge.u64 	%p3, %rd43, %rd25;
	@%p3 bra 	$L__BB0_16;
	mov.u32 	%r11, %nctaid.x;
	shl.b64 	%rd30, %rd3, 3;
	mul.wide.u32 	%rd9, %r11, 2048;
	neg.s64 	%rd5, %rd9;
	not.b64 	%rd31, %rd30;
	add.s64 	%rd32, %rd31, %rd25;
	shl.b64 	%rd33, %rd2, 11;
	sub.s64 	%rd6, %rd32, %rd33;
	and.b64  	%rd7, %rd25, 3;
	add.s64 	%rd8, %rd1, 4;
	mov.u64 	%rd42, 0;
	shl.b32 	%r38, %r4, 10;
$L__BB0_5:
	add.s64 	%rd34, %rd43, 8;
	setp.gt.u64 	%p4, %rd34, %rd25;
	shl.b64 	%rd35, %rd43, 1;
	add.s64 	%rd12, %rd1, %rd35;
	@%p4 bra 	$L__BB0_7;
	bra.uni 	$L__BB0_6;
$L__BB0_7:
	setp.ge.u64 	%p5, %rd43, %rd25;
	@%p5 bra 	$L__BB0_15;
	setp.eq.s64 	%p6, %rd7, 0;
	mov.u64 	%rd44, %rd43;
	@%p6 bra 	$L__BB0_12;
	setp.eq.s64 	%p7, %rd7, 1;
	ld.global.u16 	%rs1, [%rd12];
	mov.u32 	%r72, _ZZ15penstock_surveyE5found;
	add.s32 	%r73, %r72, %r38;
	shr.u16 	%rs2, %rs1, 5;
	cvt.u32.u16 	%r74, %rs2;
	and.b32  	%r75, %r74, 1020;
	add.s32 	%r76, %r73, %r75;
	atom.shared.add.u32 	%r77, [%r76], 1;
	add.s64 	%rd44, %rd43, 1;
	@%p7 bra 	$L__BB0_12;
	setp.eq.s64 	%p8, %rd7, 2;
	ld.global.u16 	%rs3, [%rd12+2];
	shr.u16 	%rs4, %rs3, 5;
	cvt.u32.u16 	%r81, %rs4;
	and.b32  	%r82, %r81, 1020;
	add.s32 	%r83, %r73, %r82;
	atom.shared.add.u32 	%r84, [%r83], 1;
	add.s64 	%rd44, %rd43, 2;
	@%p8 bra 	$L__BB0_12;
	ld.global.u16 	%rs5, [%rd12+4];
	shr.u16 	%rs6, %rs5, 5;
	cvt.u32.u16 	%r88, %rs6;
	and.b32  	%r89, %r88, 1020;
	add.s32 	%r90, %r73, %r89;
	atom.shared.add.u32 	%r91, [%r90], 1;
	add.s64 	%rd44, %rd43, 3;
$L__BB0_12:
	mul.lo.s64 	%rd36, %rd5, %rd42;
	add.s64 	%rd37, %rd6, %rd36;
	setp.lt.u64 	%p9, %rd37, 3;
	@%p9 bra 	$L__BB0_15;
	shl.b64 	%rd38, %rd44, 1;
	add.s64 	%rd45, %rd8, %rd38;
$L__BB0_14:
	ld.global.u16 	%rs7, [%rd45+-4];
	mov.u32 	%r93, _ZZ15penstock_surveyE5found;
	add.s32 	%r94, %r93, %r38;
	shr.u16 	%rs8, %rs7, 5;
	cvt.u32.u16 	%r95, %rs8;
	and.b32  	%r96, %r95, 1020;
	add.s32 	%r97, %r94, %r96;
	atom.shared.add.u32 	%r98, [%r97], 1;
	ld.global.u16 	%rs9, [%rd45+-2];
	shr.u16 	%rs10, %rs9, 5;
	cvt.u32.u16 	%r99, %rs10;
	and.b32  	%r100, %r99, 1020;
	add.s32 	%r101, %r94, %r100;
	atom.shared.add.u32 	%r102, [%r101], 1;
	ld.global.u16 	%rs11, [%rd45];
	shr.u16 	%rs12, %rs11, 5;
	cvt.u32.u16 	%r103, %rs12;
	and.b32  	%r104, %r103, 1020;
	add.s32 	%r105, %r94, %r104;
	atom.shared.add.u32 	%r106, [%r105], 1;
	ld.global.u16 	%rs13, [%rd45+2];
	shr.u16 	%rs14, %rs13, 5;
	cvt.u32.u16 	%r107, %rs14;
	and.b32  	%r108, %r107, 1020;
	add.s32 	%r109, %r94, %r108;
	atom.shared.add.u32 	%r110, [%r109], 1;
	add.s64 	%rd45, %rd45, 8;
	add.s64 	%rd44, %rd44, 4;
	setp.lt.u64 	%p10, %rd44, %rd25;
	@%p10 bra 	$L__BB0_14;
	bra.uni 	$L__BB0_15;
$L__BB0_6:
	ld.global.v4.u32 	{%r12, %r13, %r14, %r15}, [%rd12];
	mov.u32 	%r20, 30001;
	prmt.b32 	%r21, %r12, %r13, %r20;
	shl.b32 	%r22, %r21, 1;
	and.b32  	%r23, %r22, -16843010;
	mov.u32 	%r24, 25632;
	prmt.b32 	%r25, %r12, %r13, %r24;
	shr.u32 	%r26, %r25, 7;
	and.b32  	%r27, %r26, 16843009;
	or.b32  	%r28, %r23, %r27;
	prmt.b32 	%r29, %r14, %r15, %r20;
	shl.b32 	%r30, %r29, 1;
	and.b32  	%r31, %r30, -16843010;
	prmt.b32 	%r32, %r14, %r15, %r24;
	shr.u32 	%r33, %r32, 7;
	and.b32  	%r34, %r33, 16843009;
	or.b32  	%r35, %r31, %r34;
	shl.b32 	%r36, %r28, 2;
	and.b32  	%r37, %r36, 1020;
	mov.u32 	%r39, _ZZ15penstock_surveyE5found;
	add.s32 	%r40, %r39, %r38;
	add.s32 	%r41, %r40, %r37;
	atom.shared.add.u32 	%r42, [%r41], 1;
	shr.u32 	%r43, %r28, 6;
	and.b32  	%r44, %r43, 1020;
	add.s32 	%r45, %r40, %r44;
	atom.shared.add.u32 	%r46, [%r45], 1;
	shr.u32 	%r47, %r28, 14;
	and.b32  	%r48, %r47, 1020;
	add.s32 	%r49, %r40, %r48;
	atom.shared.add.u32 	%r50, [%r49], 1;
	shr.u32 	%r51, %r28, 22;
	and.b32  	%r52, %r51, 1020;
	add.s32 	%r53, %r40, %r52;
	atom.shared.add.u32 	%r54, [%r53], 1;
	shl.b32 	%r55, %r35, 2;
	and.b32  	%r56, %r55, 1020;
	add.s32 	%r57, %r40, %r56;
	atom.shared.add.u32 	%r58, [%r57], 1;
	shr.u32 	%r59, %r35, 6;
	and.b32  	%r60, %r59, 1020;
	add.s32 	%r61, %r40, %r60;
	atom.shared.add.u32 	%r62, [%r61], 1;
	shr.u32 	%r63, %r35, 14;
	and.b32  	%r64, %r63, 1020;
	add.s32 	%r65, %r40, %r64;
	atom.shared.add.u32 	%r66, [%r65], 1;
	shr.u32 	%r67, %r35, 22;
	and.b32  	%r68, %r67, 1020;
	add.s32 	%r69, %r40, %r68;
	atom.shared.add.u32 	%r70, [%r69], 1;
$L__BB0_15:
	add.s64 	%rd43, %rd43, %rd9;
	setp.lt.u64 	%p11, %rd43, %rd25;
	add.s64 	%rd42, %rd42, 1;
	@%p11 bra 	$L__BB0_5;
$L__BB0_16:
	bar.sync 	0;
	shl.b32 	%r111, %r1, 2;
	mov.u32 	%r112, _ZZ15penstock_surveyE5found;
	add.s32 	%r113, %r112, %r111;
	ld.shared.u32 	%r114, [%r113+1024];
	ld.shared.u32 	%r115, [%r113];
	add.s32 	%r116, %r114, %r115;
	ld.shared.u32 	%r117, [%r113+2048];
	add.s32 	%r118, %r117, %r116;
	ld.shared.u32 	%r119, [%r113+3072];
	add.s32 	%r120, %r119, %r118;
	ld.shared.u32 	%r121, [%r113+4096];
	add.s32 	%r122, %r121, %r120;
	ld.shared.u32 	%r123, [%r113+5120];
	add.s32 	%r124, %r123, %r122;
	ld.shared.u32 	%r125, [%r113+6144];
	add.s32 	%r126, %r125, %r124;
	ld.shared.u32 	%r127, [%r113+7168];
	add.s32 	%r5, %r127, %r126;
	setp.eq.s32 	%p12, %r5, 0;
	@%p12 bra 	$L__BB0_18;
	cvta.to.global.u64 	%rd39, %rd24;
	shl.b64 	%rd40, %rd3, 2;
	add.s64 	%rd41, %rd39, %rd40;
	atom.global.add.u32 	%r128, [%rd41], %r5;
$L__BB0_18:
	ret;
}
.visible .entry penstock_encode(
	.param .u64 penstock_encode_param_0,
	.param .u64 penstock_encode_param_1,
	.param .u64 penstock_encode_param_2,
	.param .u64 penstock_encode_param_3,
	.param .u64 penstock_encode_param_4,
	.param .u64 penstock_encode_param_5,
	.param .align 4 .b8 penstock_encode_param_6[64]
)
{
	.local .align 8 .b8 	__local_depot1[8];
	.reg .b64 	%SP;
	.reg .b64 	%SPL;
	.reg .pred 	%p<34>;
	.reg .b16 	%rs<8>;
	.reg .b32 	%r<238>;
	.reg .b64 	%rd<72>;
	.shared .align 1 .b8 _ZZ15penstock_encodeE5table[256];
	mov.u64 	%SPL, __local_depot1;
	ld.param.u64 	%rd24, [penstock_encode_param_0];
	ld.param.u64 	%rd20, [penstock_encode_param_1];
	ld.param.u64 	%rd21, [penstock_encode_param_2];
	ld.param.u64 	%rd22, [penstock_encode_param_3];
	ld.param.u64 	%rd25, [penstock_encode_param_4];
	ld.param.u64 	%rd23, [penstock_encode_param_5];
	mov.b64 	%rd26, penstock_encode_param_6;
	cvta.to.global.u64 	%rd2, %rd25;
	cvta.to.global.u64 	%rd3, %rd24;
	add.u64 	%rd4, %SPL, 0;
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r51, _ZZ15penstock_encodeE5table;
	add.s32 	%r52, %r51, %r1;
	mov.u16 	%rs1, 16;
	st.shared.u8 	[%r52], %rs1;
	bar.sync 	0;
	ld.param.u8 	%r53, [penstock_encode_param_6+48];
	mov.u32 	%r54, 1;
	shl.b32 	%r55, %r54, %r53;
	setp.ge.u32 	%p1, %r1, %r55;
	@%p1 bra 	$L__BB1_2;
	and.b32  	%r56, %r1, -4;
	cvt.u64.u32 	%rd28, %r56;
	add.s64 	%rd29, %rd26, %rd28;
	shl.b32 	%r57, %r1, 3;
	and.b32  	%r58, %r57, 24;
	ld.param.u32 	%r59, [%rd29+32];
	shr.u32 	%r60, %r59, %r58;
	and.b32  	%r61, %r60, 255;
	add.s32 	%r63, %r51, %r61;
	st.shared.u8 	[%r63], %r1;
$L__BB1_2:
	bar.sync 	0;
	mov.u32 	%r64, %ctaid.x;
	cvt.u64.u32 	%rd6, %r64;
	add.s64 	%rd30, %rd21, 1023;
	shr.u64 	%rd7, %rd30, 10;
	mul.wide.u32 	%rd31, %r64, 8;
	shr.u32 	%r65, %r1, 5;
	cvt.u64.u32 	%rd32, %r65;
	add.s64 	%rd8, %rd31, %rd32;
	and.b32  	%r2, %r1, 31;
	setp.ne.s32 	%p2, %r64, 0;
	setp.gt.u32 	%p3, %r1, 15;
	or.pred  	%p4, %p2, %p3;
	@%p4 bra 	$L__BB1_4;
	mul.wide.u32 	%rd33, %r1, 4;
	add.s64 	%rd34, %rd26, %rd33;
	ld.param.u32 	%r66, [%rd34];
	add.s64 	%rd35, %rd3, %rd33;
	st.global.u32 	[%rd35], %r66;
$L__BB1_4:
	setp.ge.u64 	%p5, %rd8, %rd7;
	@%p5 bra 	$L__BB1_37;
	shl.b64 	%rd36, %rd8, 10;
	shl.b32 	%r72, %r2, 3;
	cvt.u64.u32 	%rd37, %r72;
	or.b64  	%rd9, %rd36, %rd37;
	ld.param.u32 	%r73, [%rd26+32];
	shl.b32 	%r74, %r73, 7;
	and.b32  	%r3, %r74, 32640;
	cvt.u64.u32 	%rd10, %r2;
	shl.b64 	%rd38, %rd8, 6;
	or.b64  	%rd11, %rd38, %rd10;
	cvta.to.global.u64 	%rd12, %rd23;
	cvta.to.global.u64 	%rd13, %rd20;
	cvta.to.global.u64 	%rd14, %rd22;
	mov.u32 	%r220, 0;
	mov.u32 	%r221, %r220;
	mov.u32 	%r222, %r220;
	mov.u32 	%r223, %r220;
	mov.u32 	%r224, %r220;
$L__BB1_6:
	.pragma "nounroll";
	shl.b32 	%r75, %r220, 8;
	cvt.u64.u32 	%rd39, %r75;
	add.s64 	%rd15, %rd9, %rd39;
	add.s64 	%rd40, %rd15, 8;
	setp.gt.u64 	%p6, %rd40, %rd21;
	shl.b64 	%rd41, %rd15, 1;
	add.s64 	%rd16, %rd13, %rd41;
	@%p6 bra 	$L__BB1_8;
	bra.uni 	$L__BB1_7;
$L__BB1_8:
	setp.ge.u64 	%p7, %rd15, %rd21;
	mov.u32 	%r225, %r3;
	@%p7 bra 	$L__BB1_10;
	ld.global.u16 	%r225, [%rd16];
$L__BB1_10:
	add.s64 	%rd42, %rd15, 1;
	setp.ge.u64 	%p8, %rd42, %rd21;
	mov.u32 	%r226, %r3;
	@%p8 bra 	$L__BB1_12;
	ld.global.u16 	%r226, [%rd16+2];
$L__BB1_12:
	shl.b32 	%r80, %r226, 16;
	or.b32  	%r233, %r80, %r225;
	add.s64 	%rd43, %rd15, 2;
	setp.ge.u64 	%p9, %rd43, %rd21;
	mov.u32 	%r227, %r3;
	@%p9 bra 	$L__BB1_14;
	ld.global.u16 	%r227, [%rd16+4];
$L__BB1_14:
	add.s64 	%rd44, %rd15, 3;
	setp.ge.u64 	%p10, %rd44, %rd21;
	mov.u32 	%r228, %r3;
	@%p10 bra 	$L__BB1_16;
	ld.global.u16 	%r228, [%rd16+6];
$L__BB1_16:
	shl.b32 	%r81, %r228, 16;
	or.b32  	%r234, %r81, %r227;
	add.s64 	%rd45, %rd15, 4;
	setp.ge.u64 	%p11, %rd45, %rd21;
	mov.u32 	%r229, %r3;
	@%p11 bra 	$L__BB1_18;
	ld.global.u16 	%r229, [%rd16+8];
$L__BB1_18:
	add.s64 	%rd46, %rd15, 5;
	setp.ge.u64 	%p12, %rd46, %rd21;
	mov.u32 	%r230, %r3;
	@%p12 bra 	$L__BB1_20;
	ld.global.u16 	%r230, [%rd16+10];
$L__BB1_20:
	shl.b32 	%r82, %r230, 16;
	or.b32  	%r235, %r82, %r229;
	add.s64 	%rd47, %rd15, 6;
	setp.ge.u64 	%p13, %rd47, %rd21;
	mov.u32 	%r231, %r3;
	@%p13 bra 	$L__BB1_22;
	ld.global.u16 	%r231, [%rd16+12];
$L__BB1_22:
	add.s64 	%rd48, %rd15, 7;
	setp.ge.u64 	%p14, %rd48, %rd21;
	mov.u32 	%r232, %r3;
	@%p14 bra 	$L__BB1_24;
	ld.global.u16 	%r232, [%rd16+14];
$L__BB1_24:
	shl.b32 	%r83, %r232, 16;
	or.b32  	%r236, %r83, %r231;
	bra.uni 	$L__BB1_25;
$L__BB1_7:
	ld.global.v4.u32 	{%r233, %r234, %r235, %r236}, [%rd16];
$L__BB1_25:
	mov.u32 	%r84, 30001;
	prmt.b32 	%r85, %r233, %r234, %r84;
	and.b32  	%r86, %r85, -2139062144;
	mov.u32 	%r87, 25632;
	prmt.b32 	%r88, %r233, %r234, %r87;
	and.b32  	%r89, %r88, 2139062143;
	prmt.b32 	%r90, %r235, %r236, %r84;
	and.b32  	%r91, %r90, -2139062144;
	prmt.b32 	%r92, %r235, %r236, %r87;
	and.b32  	%r93, %r92, 2139062143;
	or.b32  	%r40, %r86, %r89;
	or.b32  	%r41, %r91, %r93;
	st.local.v2.u32 	[%rd4], {%r40, %r41};
	shl.b32 	%r94, %r85, 1;
	and.b32  	%r95, %r94, -16843010;
	shr.u32 	%r96, %r88, 7;
	and.b32  	%r97, %r96, 16843009;
	or.b32  	%r98, %r95, %r97;
	and.b32  	%r99, %r98, 255;
	add.s32 	%r101, %r51, %r99;
	ld.shared.u8 	%r102, [%r101];
	and.b32  	%r103, %r102, 15;
	shr.u32 	%r104, %r102, 4;
	shl.b32 	%r105, %r220, 3;
	shl.b32 	%r106, %r104, %r105;
	or.b32  	%r107, %r106, %r224;
	shr.u32 	%r108, %r98, 8;
	and.b32  	%r109, %r108, 255;
	add.s32 	%r110, %r51, %r109;
	ld.shared.u8 	%r111, [%r110];
	and.b32  	%r112, %r111, 15;
	bfi.b32 	%r113, %r112, %r103, 4, 4;
	shr.u32 	%r114, %r111, 4;
	or.b32  	%r115, %r105, 1;
	shl.b32 	%r116, %r114, %r115;
	or.b32  	%r117, %r116, %r107;
	shr.u32 	%r118, %r98, 16;
	and.b32  	%r119, %r118, 255;
	add.s32 	%r120, %r51, %r119;
	ld.shared.u8 	%rs2, [%r120];
	cvt.u32.u16 	%r121, %rs2;
	mul.wide.u16 	%r122, %rs2, 256;
	and.b32  	%r123, %r122, 3840;
	or.b32  	%r124, %r123, %r113;
	shr.u32 	%r125, %r121, 4;
	or.b32  	%r126, %r105, 2;
	shl.b32 	%r127, %r125, %r126;
	or.b32  	%r128, %r127, %r117;
	shr.u32 	%r129, %r98, 24;
	add.s32 	%r130, %r51, %r129;
	ld.shared.u8 	%rs3, [%r130];
	cvt.u32.u16 	%r131, %rs3;
	shr.u32 	%r132, %r131, 4;
	or.b32  	%r133, %r105, 3;
	shl.b32 	%r134, %r132, %r133;
	or.b32  	%r135, %r134, %r128;
	shl.b32 	%r136, %r90, 1;
	and.b32  	%r137, %r136, -16843010;
	shr.u32 	%r138, %r92, 7;
	and.b32  	%r139, %r138, 16843009;
	or.b32  	%r140, %r137, %r139;
	or.b32  	%r141, %r105, 4;
	mul.wide.u16 	%r142, %rs3, 4096;
	and.b32  	%r143, %r142, 61440;
	and.b32  	%r144, %r140, 255;
	add.s32 	%r145, %r51, %r144;
	ld.shared.u8 	%r146, [%r145];
	and.b32  	%r147, %r146, 15;
	shr.u32 	%r148, %r146, 4;
	shl.b32 	%r149, %r148, %r141;
	or.b32  	%r150, %r149, %r135;
	shr.u32 	%r151, %r140, 8;
	and.b32  	%r152, %r151, 255;
	add.s32 	%r153, %r51, %r152;
	ld.shared.u8 	%r154, [%r153];
	and.b32  	%r155, %r154, 15;
	bfi.b32 	%r156, %r155, %r147, 4, 4;
	shr.u32 	%r157, %r154, 4;
	or.b32  	%r158, %r105, 5;
	shl.b32 	%r159, %r157, %r158;
	or.b32  	%r160, %r159, %r150;
	shr.u32 	%r161, %r140, 16;
	and.b32  	%r162, %r161, 255;
	add.s32 	%r163, %r51, %r162;
	ld.shared.u8 	%rs4, [%r163];
	cvt.u32.u16 	%r164, %rs4;
	mul.wide.u16 	%r165, %rs4, 256;
	and.b32  	%r166, %r165, 3840;
	or.b32  	%r167, %r166, %r156;
	shr.u32 	%r168, %r164, 4;
	or.b32  	%r169, %r105, 6;
	shl.b32 	%r170, %r168, %r169;
	or.b32  	%r171, %r170, %r160;
	shr.u32 	%r172, %r140, 24;
	add.s32 	%r173, %r51, %r172;
	ld.shared.u8 	%rs5, [%r173];
	cvt.u32.u16 	%r174, %rs5;
	mul.wide.u16 	%r175, %rs5, 4096;
	or.b32  	%r176, %r175, %r167;
	shr.u32 	%r177, %r174, 4;
	or.b32  	%r178, %r105, 7;
	shl.b32 	%r179, %r177, %r178;
	or.b32  	%r224, %r179, %r171;
	or.b32  	%r180, %r143, %r124;
	shl.b32 	%r181, %r176, 16;
	or.b32  	%r43, %r181, %r180;
	and.b32  	%r182, %r220, 1;
	neg.s32 	%r183, %r182;
	setp.eq.b32 	%p15, %r182, 1;
	mov.pred 	%p16, 0;
	xor.pred  	%p17, %p15, %p16;
	not.pred 	%p18, %p17;
	shr.u32 	%r184, %r223, 2;
	and.b32  	%r185, %r183, %r184;
	shl.b32 	%r186, %r43, 2;
	and.b32  	%r187, %r186, -858993460;
	or.b32  	%r223, %r187, %r185;
	@%p18 bra 	$L__BB1_27;
	shl.b32 	%r188, %r220, 4;
	add.s32 	%r189, %r188, -16;
	cvt.u64.u32 	%rd49, %r189;
	add.s64 	%rd50, %rd11, %rd49;
	shl.b64 	%rd51, %rd50, 2;
	add.s64 	%rd52, %rd14, %rd51;
	st.global.u32 	[%rd52], %r223;
$L__BB1_27:
	shr.u32 	%r190, %r43, 2;
	and.b32  	%r191, %r190, 286331153;
	shl.b32 	%r192, %r191, %r220;
	or.b32  	%r222, %r192, %r222;
	shr.u32 	%r193, %r43, 3;
	and.b32  	%r194, %r193, 286331153;
	shl.b32 	%r195, %r194, %r220;
	or.b32  	%r221, %r195, %r221;
	add.s64 	%rd17, %rd3, %rd15;
	@%p6 bra 	$L__BB1_29;
	bra.uni 	$L__BB1_28;
$L__BB1_29:
	setp.ge.u64 	%p20, %rd15, %rd21;
	@%p20 bra 	$L__BB1_32;
	mov.u32 	%r237, 0;
	mov.u64 	%rd71, 0;
$L__BB1_31:
	and.b32  	%r197, %r237, -4;
	cvt.u64.u32 	%rd55, %r197;
	add.s64 	%rd56, %rd4, %rd55;
	shl.b32 	%r198, %r237, 3;
	and.b32  	%r199, %r198, 24;
	ld.local.u32 	%r200, [%rd56];
	shr.u32 	%r201, %r200, %r199;
	add.s64 	%rd57, %rd17, %rd71;
	st.global.u8 	[%rd57+64], %r201;
	add.s32 	%r237, %r237, 1;
	setp.lt.u32 	%p21, %r237, 8;
	cvt.u64.u32 	%rd71, %r237;
	add.s64 	%rd58, %rd15, %rd71;
	setp.lt.u64 	%p22, %rd58, %rd21;
	and.pred  	%p23, %p21, %p22;
	@%p23 bra 	$L__BB1_31;
	bra.uni 	$L__BB1_32;
$L__BB1_28:
	st.global.v2.u32 	[%rd17+64], {%r40, %r41};
$L__BB1_32:
	add.s32 	%r220, %r220, 1;
	setp.lt.u32 	%p24, %r220, 4;
	@%p24 bra 	$L__BB1_6;
	shl.b64 	%rd59, %rd8, 5;
	or.b64  	%rd60, %rd59, %rd10;
	shl.b64 	%rd61, %rd60, 2;
	add.s64 	%rd62, %rd2, %rd61;
	st.global.u32 	[%rd62], %r222;
	ld.param.u8 	%rs6, [%rd26+48];
	and.b16  	%rs7, %rs6, 252;
	setp.eq.s16 	%p25, %rs7, 0;
	@%p25 bra 	$L__BB1_35;
	add.s64 	%rd63, %rd7, %rd8;
	shl.b64 	%rd64, %rd63, 5;
	or.b64  	%rd65, %rd64, %rd10;
	shl.b64 	%rd66, %rd65, 2;
	add.s64 	%rd67, %rd2, %rd66;
	st.global.u32 	[%rd67], %r221;
$L__BB1_35:
	popc.b32 	%r202, %r224;
	mov.u32 	%r203, 31;
	mov.u32 	%r204, 16;
	mov.u32 	%r205, -1;
	shfl.sync.bfly.b32 	%r206|%p26, %r202, %r204, %r203, %r205;
	add.s32 	%r207, %r206, %r202;
	mov.u32 	%r208, 8;
	shfl.sync.bfly.b32 	%r209|%p27, %r207, %r208, %r203, %r205;
	add.s32 	%r210, %r209, %r207;
	mov.u32 	%r211, 4;
	shfl.sync.bfly.b32 	%r212|%p28, %r210, %r211, %r203, %r205;
	add.s32 	%r213, %r212, %r210;
	mov.u32 	%r214, 2;
	shfl.sync.bfly.b32 	%r215|%p29, %r213, %r214, %r203, %r205;
	add.s32 	%r216, %r215, %r213;
	mov.u32 	%r217, 1;
	shfl.sync.bfly.b32 	%r218|%p30, %r216, %r217, %r203, %r205;
	add.s32 	%r50, %r218, %r216;
	setp.eq.s32 	%p31, %r50, 0;
	setp.ne.s32 	%p32, %r2, 0;
	or.pred  	%p33, %p32, %p31;
	@%p33 bra 	$L__BB1_37;
	shl.b64 	%rd68, %rd6, 2;
	add.s64 	%rd69, %rd12, %rd68;
	add.s64 	%rd70, %rd69, 4;
	atom.global.add.u32 	%r219, [%rd70], %r50;
$L__BB1_37:
	ret;
}
.visible .entry penstock_starts(
	.param .u64 penstock_starts_param_0,
	.param .u64 penstock_starts_param_1
)
{
	.reg .pred 	%p<17>;
	.reg .b32 	%r<67>;
	.reg .b64 	%rd<20>;
	.shared .align 4 .b8 _ZZ15penstock_startsE4sums[1024];
	ld.param.u64 	%rd9, [penstock_starts_param_0];
	ld.param.u64 	%rd8, [penstock_starts_param_1];
	cvta.to.global.u64 	%rd1, %rd9;
	add.s64 	%rd10, %rd8, 255;
	shr.u64 	%rd11, %rd10, 8;
	mov.u32 	%r1, %tid.x;
	cvt.u64.u32 	%rd12, %r1;
	mul.lo.s64 	%rd13, %rd11, %rd12;
	add.s64 	%rd19, %rd13, 1;
	add.s64 	%rd3, %rd19, %rd11;
	setp.lt.u64 	%p2, %rd19, %rd3;
	setp.le.u64 	%p3, %rd19, %rd8;
	and.pred  	%p1, %p2, %p3;
	mov.u32 	%r65, 0;
	not.pred 	%p4, %p1;
	mov.u32 	%r54, %r65;
	@%p4 bra 	$L__BB2_3;
	mov.u32 	%r54, 0;
	mov.u64 	%rd18, %rd19;
$L__BB2_2:
	shl.b64 	%rd14, %rd18, 2;
	add.s64 	%rd15, %rd1, %rd14;
	ld.global.u32 	%r30, [%rd15];
	add.s32 	%r54, %r30, %r54;
	add.s64 	%rd18, %rd18, 1;
	setp.lt.u64 	%p5, %rd18, %rd3;
	setp.le.u64 	%p6, %rd18, %rd8;
	and.pred  	%p7, %p5, %p6;
	@%p7 bra 	$L__BB2_2;
$L__BB2_3:
	shl.b32 	%r32, %r1, 2;
	mov.u32 	%r33, _ZZ15penstock_startsE4sums;
	add.s32 	%r34, %r33, %r32;
	st.shared.u32 	[%r34], %r54;
	bar.sync 	0;
	setp.eq.s32 	%p8, %r1, 0;
	@%p8 bra 	$L__BB2_10;
	add.s32 	%r38, %r1, -1;
	and.b32  	%r64, %r1, 3;
	setp.lt.u32 	%p9, %r38, 3;
	mov.u32 	%r60, 0;
	mov.u32 	%r65, %r60;
	@%p9 bra 	$L__BB2_7;
	sub.s32 	%r58, %r1, %r64;
	mov.u32 	%r60, 0;
	mov.u32 	%r55, %r33;
$L__BB2_6:
	ld.shared.u32 	%r42, [%r55];
	add.s32 	%r43, %r42, %r65;
	ld.shared.u32 	%r44, [%r55+4];
	add.s32 	%r45, %r44, %r43;
	ld.shared.u32 	%r46, [%r55+8];
	add.s32 	%r47, %r46, %r45;
	ld.shared.u32 	%r48, [%r55+12];
	add.s32 	%r65, %r48, %r47;
	add.s32 	%r60, %r60, 4;
	add.s32 	%r55, %r55, 16;
	add.s32 	%r58, %r58, -4;
	setp.ne.s32 	%p10, %r58, 0;
	@%p10 bra 	$L__BB2_6;
$L__BB2_7:
	setp.eq.s32 	%p11, %r64, 0;
	@%p11 bra 	$L__BB2_10;
	shl.b32 	%r49, %r60, 2;
	add.s32 	%r62, %r33, %r49;
$L__BB2_9:
	.pragma "nounroll";
	ld.shared.u32 	%r51, [%r62];
	add.s32 	%r65, %r51, %r65;
	add.s32 	%r62, %r62, 4;
	add.s32 	%r64, %r64, -1;
	setp.ne.s32 	%p12, %r64, 0;
	@%p12 bra 	$L__BB2_9;
$L__BB2_10:
	@%p4 bra 	$L__BB2_12;
$L__BB2_11:
	shl.b64 	%rd16, %rd19, 2;
	add.s64 	%rd17, %rd1, %rd16;
	ld.global.u32 	%r52, [%rd17];
	add.s32 	%r65, %r52, %r65;
	st.global.u32 	[%rd17], %r65;
	add.s64 	%rd19, %rd19, 1;
	setp.lt.u64 	%p14, %rd19, %rd3;
	setp.le.u64 	%p15, %rd19, %rd8;
	and.pred  	%p16, %p14, %p15;
	@%p16 bra 	$L__BB2_11;
$L__BB2_12:
	ret;
}
.visible .entry penstock_escapes(
	.param .u64 penstock_escapes_param_0,
	.param .u64 penstock_escapes_param_1,
	.param .u64 penstock_escapes_param_2,
	.param .u64 penstock_escapes_param_3,
	.param .u64 penstock_escapes_param_4,
	.param .align 4 .b8 penstock_escapes_param_5[64]
)
{
	.reg .pred 	%p<38>;
	.reg .b16 	%rs<20>;
	.reg .b32 	%r<272>;
	.reg .b64 	%rd<57>;
	.shared .align 1 .b8 _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE5table[256];
	.shared .align 4 .b8 _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE6counts[32];
	ld.param.u64 	%rd27, [penstock_escapes_param_0];
	ld.param.u64 	%rd24, [penstock_escapes_param_1];
	ld.param.u64 	%rd28, [penstock_escapes_param_2];
	ld.param.u64 	%rd25, [penstock_escapes_param_3];
	ld.param.u64 	%rd26, [penstock_escapes_param_4];
	mov.b64 	%rd29, penstock_escapes_param_5;
	cvta.to.global.u64 	%rd2, %rd27;
	mov.u32 	%r75, %ctaid.x;
	cvt.u64.u32 	%rd3, %r75;
	cvta.to.global.u64 	%rd30, %rd28;
	mul.wide.u32 	%rd31, %r75, 4;
	add.s64 	%rd4, %rd30, %rd31;
	ld.global.u32 	%r76, [%rd4+4];
	ld.global.u32 	%r77, [%rd4];
	setp.eq.s32 	%p1, %r77, %r76;
	@%p1 bra 	$L__BB3_38;
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r78, _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE5table;
	add.s32 	%r79, %r78, %r1;
	mov.u16 	%rs1, 16;
	st.shared.u8 	[%r79], %rs1;
	bar.sync 	0;
	ld.param.u8 	%r80, [%rd29+48];
	mov.u32 	%r81, 1;
	shl.b32 	%r82, %r81, %r80;
	setp.ge.u32 	%p2, %r1, %r82;
	@%p2 bra 	$L__BB3_3;
	and.b32  	%r83, %r1, -4;
	cvt.u64.u32 	%rd32, %r83;
	add.s64 	%rd33, %rd29, %rd32;
	shl.b32 	%r84, %r1, 3;
	and.b32  	%r85, %r84, 24;
	ld.param.u32 	%r86, [%rd33+32];
	shr.u32 	%r87, %r86, %r85;
	and.b32  	%r88, %r87, 255;
	add.s32 	%r90, %r78, %r88;
	st.shared.u8 	[%r90], %r1;
$L__BB3_3:
	bar.sync 	0;
	shr.u32 	%r2, %r1, 5;
	and.b32  	%r3, %r1, 31;
	shl.b32 	%r93, %r1, 3;
	and.b32  	%r94, %r93, 248;
	cvt.u64.u32 	%rd6, %r94;
	ld.param.u32 	%r95, [%rd29+32];
	shl.b32 	%r96, %r95, 7;
	and.b32  	%r4, %r96, 32640;
	add.s64 	%rd7, %rd6, 8;
	mul.wide.u32 	%rd34, %r2, 1024;
	shl.b64 	%rd8, %rd3, 13;
	add.s64 	%rd56, %rd8, %rd34;
	or.b64  	%rd10, %rd6, 7;
	or.b64  	%rd11, %rd6, 2;
	or.b64  	%rd12, %rd6, 5;
	or.b64  	%rd13, %rd6, 4;
	or.b64  	%rd14, %rd6, 3;
	or.b64  	%rd15, %rd6, 1;
	or.b64  	%rd35, %rd34, %rd6;
	add.s64 	%rd36, %rd35, %rd8;
	shl.b64 	%rd37, %rd36, 1;
	add.s64 	%rd55, %rd2, %rd37;
	or.b64  	%rd17, %rd6, 6;
	cvta.to.global.u64 	%rd18, %rd26;
	cvta.to.global.u64 	%rd19, %rd25;
	mov.u32 	%r243, 0;
	mov.u32 	%r244, %r243;
$L__BB3_4:
	.pragma "nounroll";
	add.s64 	%rd38, %rd7, %rd56;
	setp.gt.u64 	%p3, %rd38, %rd24;
	@%p3 bra 	$L__BB3_6;
	bra.uni 	$L__BB3_5;
$L__BB3_6:
	add.s64 	%rd39, %rd6, %rd56;
	setp.ge.u64 	%p4, %rd39, %rd24;
	mov.u32 	%r245, %r4;
	@%p4 bra 	$L__BB3_8;
	ld.global.u16 	%r245, [%rd55];
$L__BB3_8:
	add.s64 	%rd40, %rd15, %rd56;
	setp.ge.u64 	%p5, %rd40, %rd24;
	mov.u32 	%r246, %r4;
	@%p5 bra 	$L__BB3_10;
	ld.global.u16 	%r246, [%rd55+2];
$L__BB3_10:
	shl.b32 	%r101, %r246, 16;
	or.b32  	%r253, %r101, %r245;
	add.s64 	%rd41, %rd11, %rd56;
	setp.ge.u64 	%p6, %rd41, %rd24;
	mov.u32 	%r247, %r4;
	@%p6 bra 	$L__BB3_12;
	ld.global.u16 	%r247, [%rd55+4];
$L__BB3_12:
	add.s64 	%rd42, %rd14, %rd56;
	setp.ge.u64 	%p7, %rd42, %rd24;
	mov.u32 	%r248, %r4;
	@%p7 bra 	$L__BB3_14;
	ld.global.u16 	%r248, [%rd55+6];
$L__BB3_14:
	shl.b32 	%r102, %r248, 16;
	or.b32  	%r254, %r102, %r247;
	add.s64 	%rd43, %rd13, %rd56;
	setp.ge.u64 	%p8, %rd43, %rd24;
	mov.u32 	%r249, %r4;
	@%p8 bra 	$L__BB3_16;
	ld.global.u16 	%r249, [%rd55+8];
$L__BB3_16:
	add.s64 	%rd44, %rd12, %rd56;
	setp.ge.u64 	%p9, %rd44, %rd24;
	mov.u32 	%r250, %r4;
	@%p9 bra 	$L__BB3_18;
	ld.global.u16 	%r250, [%rd55+10];
$L__BB3_18:
	shl.b32 	%r103, %r250, 16;
	or.b32  	%r255, %r103, %r249;
	add.s64 	%rd45, %rd17, %rd56;
	setp.ge.u64 	%p10, %rd45, %rd24;
	mov.u32 	%r251, %r4;
	@%p10 bra 	$L__BB3_20;
	ld.global.u16 	%r251, [%rd55+12];
$L__BB3_20:
	add.s64 	%rd46, %rd10, %rd56;
	setp.ge.u64 	%p11, %rd46, %rd24;
	mov.u32 	%r252, %r4;
	@%p11 bra 	$L__BB3_22;
	ld.global.u16 	%r252, [%rd55+14];
$L__BB3_22:
	shl.b32 	%r104, %r252, 16;
	or.b32  	%r256, %r104, %r251;
	bra.uni 	$L__BB3_23;
$L__BB3_5:
	ld.global.v4.u32 	{%r253, %r254, %r255, %r256}, [%rd55];
$L__BB3_23:
	mov.u32 	%r105, 30001;
	prmt.b32 	%r106, %r253, %r254, %r105;
	shl.b32 	%r107, %r106, 1;
	and.b32  	%r108, %r107, -16843010;
	mov.u32 	%r109, 25632;
	prmt.b32 	%r110, %r253, %r254, %r109;
	shr.u32 	%r111, %r110, 7;
	and.b32  	%r112, %r111, 16843009;
	or.b32  	%r113, %r108, %r112;
	add.s32 	%r114, %r243, 3;
	and.b32  	%r115, %r113, 255;
	add.s32 	%r117, %r78, %r115;
	ld.shared.u8 	%rs2, [%r117];
	shr.u16 	%rs3, %rs2, 4;
	cvt.u32.u16 	%r118, %rs3;
	shl.b32 	%r119, %r118, %r243;
	or.b32  	%r120, %r119, %r244;
	shr.u32 	%r121, %r113, 8;
	and.b32  	%r122, %r121, 255;
	add.s32 	%r123, %r78, %r122;
	ld.shared.u8 	%rs4, [%r123];
	shr.u16 	%rs5, %rs4, 4;
	cvt.u32.u16 	%r124, %rs5;
	add.s32 	%r125, %r243, 1;
	shl.b32 	%r126, %r124, %r125;
	or.b32  	%r127, %r126, %r120;
	shr.u32 	%r128, %r113, 16;
	and.b32  	%r129, %r128, 255;
	add.s32 	%r130, %r78, %r129;
	ld.shared.u8 	%rs6, [%r130];
	shr.u16 	%rs7, %rs6, 4;
	cvt.u32.u16 	%r131, %rs7;
	add.s32 	%r132, %r243, 2;
	shl.b32 	%r133, %r131, %r132;
	or.b32  	%r134, %r133, %r127;
	shr.u32 	%r135, %r113, 24;
	add.s32 	%r136, %r78, %r135;
	ld.shared.u8 	%rs8, [%r136];
	shr.u16 	%rs9, %rs8, 4;
	cvt.u32.u16 	%r137, %rs9;
	shl.b32 	%r138, %r137, %r114;
	or.b32  	%r139, %r138, %r134;
	prmt.b32 	%r140, %r255, %r256, %r105;
	shl.b32 	%r141, %r140, 1;
	and.b32  	%r142, %r141, -16843010;
	prmt.b32 	%r143, %r255, %r256, %r109;
	shr.u32 	%r144, %r143, 7;
	and.b32  	%r145, %r144, 16843009;
	or.b32  	%r146, %r142, %r145;
	and.b32  	%r147, %r146, 255;
	add.s32 	%r148, %r78, %r147;
	ld.shared.u8 	%rs10, [%r148];
	shr.u16 	%rs11, %rs10, 4;
	cvt.u32.u16 	%r149, %rs11;
	add.s32 	%r150, %r243, 4;
	shl.b32 	%r151, %r149, %r150;
	or.b32  	%r152, %r151, %r139;
	shr.u32 	%r153, %r146, 8;
	and.b32  	%r154, %r153, 255;
	add.s32 	%r155, %r78, %r154;
	ld.shared.u8 	%rs12, [%r155];
	shr.u16 	%rs13, %rs12, 4;
	cvt.u32.u16 	%r156, %rs13;
	add.s32 	%r157, %r243, 5;
	shl.b32 	%r158, %r156, %r157;
	or.b32  	%r159, %r158, %r152;
	shr.u32 	%r160, %r146, 16;
	and.b32  	%r161, %r160, 255;
	add.s32 	%r162, %r78, %r161;
	ld.shared.u8 	%rs14, [%r162];
	shr.u16 	%rs15, %rs14, 4;
	cvt.u32.u16 	%r163, %rs15;
	add.s32 	%r164, %r243, 6;
	shl.b32 	%r165, %r163, %r164;
	or.b32  	%r166, %r165, %r159;
	shr.u32 	%r167, %r146, 24;
	add.s32 	%r168, %r78, %r167;
	ld.shared.u8 	%rs16, [%r168];
	shr.u16 	%rs17, %rs16, 4;
	cvt.u32.u16 	%r169, %rs17;
	add.s32 	%r170, %r243, 7;
	shl.b32 	%r171, %r169, %r170;
	or.b32  	%r244, %r171, %r166;
	add.s32 	%r243, %r243, 8;
	add.s64 	%rd56, %rd56, 256;
	add.s64 	%rd55, %rd55, 512;
	setp.ne.s32 	%p12, %r114, 27;
	@%p12 bra 	$L__BB3_4;
	popc.b32 	%r172, %r244;
	mov.u32 	%r173, 31;
	mov.u32 	%r174, 16;
	mov.u32 	%r175, -1;
	shfl.sync.bfly.b32 	%r176|%p13, %r172, %r174, %r173, %r175;
	add.s32 	%r177, %r176, %r172;
	mov.u32 	%r178, 8;
	shfl.sync.bfly.b32 	%r179|%p14, %r177, %r178, %r173, %r175;
	add.s32 	%r180, %r179, %r177;
	mov.u32 	%r181, 4;
	shfl.sync.bfly.b32 	%r182|%p15, %r180, %r181, %r173, %r175;
	add.s32 	%r183, %r182, %r180;
	mov.u32 	%r184, 2;
	shfl.sync.bfly.b32 	%r185|%p16, %r183, %r184, %r173, %r175;
	add.s32 	%r186, %r185, %r183;
	mov.u32 	%r187, 1;
	shfl.sync.bfly.b32 	%r188|%p17, %r186, %r187, %r173, %r175;
	add.s32 	%r40, %r188, %r186;
	setp.ne.s32 	%p18, %r3, 0;
	@%p18 bra 	$L__BB3_26;
	shl.b32 	%r189, %r2, 2;
	mov.u32 	%r190, _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE6counts;
	add.s32 	%r191, %r190, %r189;
	st.shared.u32 	[%r191], %r40;
$L__BB3_26:
	bar.sync 	0;
	ld.global.u32 	%r267, [%rd4];
	setp.eq.s32 	%p19, %r2, 0;
	@%p19 bra 	$L__BB3_33;
	add.s32 	%r194, %r2, -1;
	and.b32  	%r266, %r2, 3;
	setp.lt.u32 	%p20, %r194, 3;
	mov.u32 	%r262, 0;
	@%p20 bra 	$L__BB3_30;
	sub.s32 	%r260, %r2, %r266;
	mov.u32 	%r262, 0;
	mov.u32 	%r257, _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE6counts;
$L__BB3_29:
	ld.shared.u32 	%r197, [%r257];
	add.s32 	%r198, %r197, %r267;
	ld.shared.u32 	%r199, [%r257+4];
	add.s32 	%r200, %r199, %r198;
	ld.shared.u32 	%r201, [%r257+8];
	add.s32 	%r202, %r201, %r200;
	ld.shared.u32 	%r203, [%r257+12];
	add.s32 	%r267, %r203, %r202;
	add.s32 	%r262, %r262, 4;
	add.s32 	%r257, %r257, 16;
	add.s32 	%r260, %r260, -4;
	setp.ne.s32 	%p21, %r260, 0;
	@%p21 bra 	$L__BB3_29;
$L__BB3_30:
	setp.eq.s32 	%p22, %r266, 0;
	@%p22 bra 	$L__BB3_33;
	shl.b32 	%r204, %r262, 2;
	mov.u32 	%r205, _ZZ16penstock_escapesPKtyPKjPtPh6HeaderE6counts;
	add.s32 	%r264, %r205, %r204;
$L__BB3_32:
	.pragma "nounroll";
	ld.shared.u32 	%r206, [%r264];
	add.s32 	%r267, %r206, %r267;
	add.s32 	%r264, %r264, 4;
	add.s32 	%r266, %r266, -1;
	setp.ne.s32 	%p23, %r266, 0;
	@%p23 bra 	$L__BB3_32;
$L__BB3_33:
	shl.b32 	%r208, %r2, 10;
	cvt.u32.u64 	%r209, %rd6;
	or.b32  	%r63, %r209, %r208;
	mov.u32 	%r207, 0;
	mov.u32 	%r268, %r207;
$L__BB3_34:
	.pragma "nounroll";
	shl.b32 	%r210, %r268, 3;
	shr.u32 	%r211, %r244, %r210;
	and.b32  	%r271, %r211, 255;
	popc.b32 	%r212, %r271;
	mov.u32 	%r214, 1;
	mov.u32 	%r215, -1;
	shfl.sync.up.b32 	%r216|%p24, %r212, %r214, %r207, %r215;
	setp.eq.s32 	%p25, %r3, 0;
	selp.b32 	%r217, 0, %r216, %p25;
	add.s32 	%r218, %r217, %r212;
	mov.u32 	%r219, 2;
	shfl.sync.up.b32 	%r220|%p26, %r218, %r219, %r207, %r215;
	setp.lt.u32 	%p27, %r3, 2;
	selp.b32 	%r221, 0, %r220, %p27;
	add.s32 	%r222, %r221, %r218;
	mov.u32 	%r223, 4;
	shfl.sync.up.b32 	%r224|%p28, %r222, %r223, %r207, %r215;
	setp.lt.u32 	%p29, %r3, 4;
	selp.b32 	%r225, 0, %r224, %p29;
	add.s32 	%r226, %r225, %r222;
	mov.u32 	%r227, 8;
	shfl.sync.up.b32 	%r228|%p30, %r226, %r227, %r207, %r215;
	setp.lt.u32 	%p31, %r3, 8;
	selp.b32 	%r229, 0, %r228, %p31;
	add.s32 	%r230, %r229, %r226;
	mov.u32 	%r231, 16;
	shfl.sync.up.b32 	%r232|%p32, %r230, %r231, %r207, %r215;
	setp.lt.u32 	%p33, %r3, 16;
	selp.b32 	%r233, 0, %r232, %p33;
	add.s32 	%r234, %r233, %r230;
	sub.s32 	%r235, %r267, %r212;
	add.s32 	%r270, %r235, %r234;
	mov.u32 	%r236, 31;
	shfl.sync.idx.b32 	%r237|%p34, %r234, %r236, %r236, %r215;
	add.s32 	%r267, %r237, %r267;
	setp.eq.s32 	%p35, %r271, 0;
	@%p35 bra 	$L__BB3_37;
	shl.b32 	%r238, %r268, 8;
	add.s32 	%r69, %r63, %r238;
$L__BB3_36:
	brev.b32 	%r239, %r271;
	bfind.shiftamt.u32 	%r240, %r239;
	add.s32 	%r241, %r69, %r240;
	cvt.u64.u32 	%rd47, %r270;
	mul.wide.u32 	%rd48, %r270, 2;
	add.s64 	%rd49, %rd19, %rd48;
	st.global.u16 	[%rd49], %r241;
	cvt.u64.u32 	%rd50, %r241;
	add.s64 	%rd51, %rd8, %rd50;
	shl.b64 	%rd52, %rd51, 1;
	add.s64 	%rd53, %rd2, %rd52;
	ld.global.u16 	%rs18, [%rd53];
	shr.u16 	%rs19, %rs18, 7;
	add.s64 	%rd54, %rd18, %rd47;
	st.global.u8 	[%rd54], %rs19;
	add.s32 	%r242, %r271, -1;
	and.b32  	%r271, %r242, %r271;
	add.s32 	%r270, %r270, 1;
	setp.ne.s32 	%p36, %r271, 0;
	@%p36 bra 	$L__BB3_36;
$L__BB3_37:
	add.s32 	%r268, %r268, 1;
	setp.lt.u32 	%p37, %r268, 4;
	@%p37 bra 	$L__BB3_34;
$L__BB3_38:
	ret;
}
)ptx";

}  // namespace penstock::driver::cuda
