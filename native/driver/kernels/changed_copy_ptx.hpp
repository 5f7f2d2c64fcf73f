// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from changed_copy.cu; not to be edited. Its SHA-256:
// fd56f66a8f81f9cd2dbfdcf230e1e634bd3e7f639b06e7f7cd869380394005e8
#pragma once

namespace penstock::driver::cuda {

inline constexpr char kChangedCopyPtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry penstock_compare(
	.param .u64 penstock_compare_param_0,
	.param .u64 penstock_compare_param_1,
	.param .u64 penstock_compare_param_2,
	.param .u32 penstock_compare_param_3,
	.param .u64 penstock_compare_param_4,
	.param .u64 penstock_compare_param_5,
	.param .u64 penstock_compare_param_6
)
{
	.reg .pred 	%p<25>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<80>;
	.reg .b64 	%rd<119>;
	.shared .align 8 .b8 _ZZ16penstock_compareE8of_block[16];
	.shared .align 1 .u8 _ZZ16penstock_compareE4last;
	.shared .align 1 .u8 _ZZ16penstock_compareE7changed;
	ld.param.u64 	%rd37, [penstock_compare_param_0];
	ld.param.u64 	%rd34, [penstock_compare_param_1];
	ld.param.u64 	%rd38, [penstock_compare_param_2];
	ld.param.u32 	%r5, [penstock_compare_param_3];
	ld.param.u64 	%rd35, [penstock_compare_param_4];
	ld.param.u64 	%rd36, [penstock_compare_param_5];
	ld.param.u64 	%rd39, [penstock_compare_param_6];
	cvta.to.global.u64 	%rd1, %rd36;
	cvta.to.global.u64 	%rd2, %rd37;
	cvta.to.global.u64 	%rd3, %rd38;
	cvta.to.global.u64 	%rd4, %rd39;
	mov.u32 	%r1, %tid.x;
	setp.gt.u32 	%p1, %r1, 1;
	@%p1 bra 	$L__BB0_2;
	shl.b32 	%r6, %r1, 3;
	mov.u32 	%r7, _ZZ16penstock_compareE8of_block;
	add.s32 	%r8, %r7, %r6;
	mov.u64 	%rd40, 0;
	st.shared.u64 	[%r8], %rd40;
$L__BB0_2:
	bar.sync 	0;
	mov.u32 	%r2, %nctaid.x;
	mov.u32 	%r9, %ntid.x;
	cvt.u64.u32 	%rd5, %r9;
	mov.u32 	%r10, %ctaid.x;
	mul.wide.u32 	%rd43, %r10, %r9;
	cvt.u64.u32 	%rd117, %r1;
	add.s64 	%rd108, %rd43, %rd117;
	setp.ge.u64 	%p2, %rd108, %rd34;
	mov.u64 	%rd111, 0;
	mov.u64 	%rd112, %rd111;
	@%p2 bra 	$L__BB0_5;
	cvt.u64.u32 	%rd46, %r2;
	mul.lo.s64 	%rd8, %rd46, %rd5;
	mov.u64 	%rd112, 0;
	mov.u64 	%rd111, %rd112;
$L__BB0_4:
	shl.b64 	%rd47, %rd108, 4;
	add.s64 	%rd48, %rd2, %rd47;
	ld.global.v4.u32 	{%r11, %r12, %r13, %r14}, [%rd48];
	cvt.u64.u32 	%rd49, %r11;
	cvt.u64.u32 	%rd50, %r12;
	bfi.b64 	%rd51, %rd50, %rd49, 32, 32;
	cvt.u64.u32 	%rd52, %r13;
	cvt.u64.u32 	%rd53, %r14;
	bfi.b64 	%rd54, %rd53, %rd52, 32, 32;
	mul.lo.s64 	%rd55, %rd108, -7046029254386353131;
	add.s64 	%rd56, %rd55, 2611923443488327891;
	mul.lo.s64 	%rd57, %rd108, -3335678366873096957;
	add.s64 	%rd58, %rd57, 1376283091369227076;
	xor.b64  	%rd59, %rd51, %rd56;
	xor.b64  	%rd60, %rd54, %rd58;
	mul.hi.u64 	%rd61, %rd59, %rd60;
	mul.lo.s64 	%rd62, %rd60, %rd59;
	xor.b64  	%rd63, %rd62, %rd61;
	add.s64 	%rd112, %rd63, %rd112;
	mov.u64 	%rd64, -1376283091369227077;
	sub.s64 	%rd65, %rd64, %rd57;
	xor.b64  	%rd66, %rd51, %rd65;
	mov.u64 	%rd67, -2611923443488327892;
	sub.s64 	%rd68, %rd67, %rd55;
	xor.b64  	%rd69, %rd54, %rd68;
	mul.hi.u64 	%rd70, %rd66, %rd69;
	mul.lo.s64 	%rd71, %rd69, %rd66;
	xor.b64  	%rd72, %rd71, %rd70;
	add.s64 	%rd111, %rd72, %rd111;
	add.s64 	%rd108, %rd108, %rd8;
	setp.lt.u64 	%p3, %rd108, %rd34;
	@%p3 bra 	$L__BB0_4;
$L__BB0_5:
	mov.u32 	%r79, 16;
$L__BB0_6:
	.pragma "nounroll";
	mov.b64 {%r20,%r21}, %rd112;
	mov.u32 	%r28, 31;
	mov.u32 	%r29, -1;
	shfl.sync.down.b32 	%r23|%p4, %r21, %r79, %r28, %r29;
	shfl.sync.down.b32 	%r22|%p5, %r20, %r79, %r28, %r29;
	mov.b64 %rd74, {%r22,%r23};
	add.s64 	%rd112, %rd74, %rd112;
	mov.b64 {%r24,%r25}, %rd111;
	shfl.sync.down.b32 	%r27|%p6, %r25, %r79, %r28, %r29;
	shfl.sync.down.b32 	%r26|%p7, %r24, %r79, %r28, %r29;
	mov.b64 %rd76, {%r26,%r27};
	add.s64 	%rd111, %rd76, %rd111;
	shr.u32 	%r79, %r79, 1;
	setp.ne.s32 	%p8, %r79, 0;
	@%p8 bra 	$L__BB0_6;
	and.b32  	%r30, %r1, 31;
	setp.ne.s32 	%p9, %r30, 0;
	@%p9 bra 	$L__BB0_9;
	mov.u32 	%r31, _ZZ16penstock_compareE8of_block;
	atom.shared.add.u64 	%rd77, [%r31], %rd112;
	add.s32 	%r32, %r31, 8;
	atom.shared.add.u64 	%rd78, [%r32], %rd111;
$L__BB0_9:
	bar.sync 	0;
	setp.ne.s32 	%p10, %r1, 0;
	@%p10 bra 	$L__BB0_11;
	add.s64 	%rd79, %rd4, 8;
	ld.shared.u64 	%rd80, [_ZZ16penstock_compareE8of_block];
	atom.global.add.u64 	%rd81, [%rd79], %rd80;
	ld.shared.u64 	%rd82, [_ZZ16penstock_compareE8of_block+8];
	add.s64 	%rd83, %rd4, 16;
	atom.global.add.u64 	%rd84, [%rd83], %rd82;
	membar.gl;
	atom.global.add.u32 	%r33, [%rd4], 1;
	add.s32 	%r34, %r2, -1;
	setp.eq.s32 	%p11, %r33, %r34;
	selp.u16 	%rs3, 1, 0, %p11;
	st.shared.u8 	[_ZZ16penstock_compareE4last], %rs3;
$L__BB0_11:
	bar.sync 	0;
	ld.shared.u8 	%rs4, [_ZZ16penstock_compareE4last];
	setp.eq.s16 	%p12, %rs4, 0;
	@%p12 bra 	$L__BB0_24;
	@%p10 bra 	$L__BB0_18;
	membar.gl;
	add.s64 	%rd85, %rd4, 8;
	atom.global.exch.b64 	%rd21, [%rd85], 0;
	add.s64 	%rd86, %rd4, 16;
	atom.global.exch.b64 	%rd22, [%rd86], 0;
	setp.eq.s32 	%p14, %r5, 0;
	mov.u16 	%rs8, 1;
	@%p14 bra 	$L__BB0_16;
	ld.global.u64 	%rd87, [%rd3];
	setp.ne.s64 	%p15, %rd87, %rd21;
	@%p15 bra 	$L__BB0_16;
	ld.global.u64 	%rd88, [%rd3+8];
	setp.ne.s64 	%p16, %rd88, %rd22;
	selp.u16 	%rs8, 1, 0, %p16;
$L__BB0_16:
	st.shared.u8 	[_ZZ16penstock_compareE7changed], %rs8;
	cvt.u32.u16 	%r35, %rs8;
	mov.u32 	%r36, 0;
	st.global.v2.u32 	[%rd4], {%r36, %r35};
	setp.eq.s16 	%p17, %rs8, 0;
	@%p17 bra 	$L__BB0_18;
	st.global.u64 	[%rd3], %rd21;
	st.global.u64 	[%rd3+8], %rd22;
	cvta.to.global.u64 	%rd89, %rd35;
	ld.volatile.global.u32 	%r37, [%rd89];
	add.s32 	%r38, %r37, 1;
	st.volatile.global.u32 	[%rd89], %r38;
$L__BB0_18:
	bar.sync 	0;
	ld.shared.u8 	%rs7, [_ZZ16penstock_compareE7changed];
	setp.eq.s16 	%p18, %rs7, 0;
	setp.eq.s64 	%p19, %rd36, 0;
	or.pred  	%p20, %p19, %p18;
	@%p20 bra 	$L__BB0_24;
	mul.lo.s64 	%rd23, %rd5, 3;
	add.s64 	%rd90, %rd23, %rd117;
	setp.ge.u64 	%p21, %rd90, %rd34;
	@%p21 bra 	$L__BB0_22;
	shl.b64 	%rd24, %rd5, 4;
	shl.b64 	%rd91, %rd117, 4;
	add.s64 	%rd116, %rd1, %rd91;
	neg.s64 	%rd26, %rd5;
	shl.b64 	%rd99, %rd26, 4;
$L__BB0_21:
	.pragma "nounroll";
	shl.b64 	%rd92, %rd117, 4;
	add.s64 	%rd93, %rd2, %rd92;
	shl.b64 	%rd94, %rd5, 2;
	add.s64 	%rd96, %rd93, %rd24;
	ld.global.v4.u32 	{%r39, %r40, %r41, %r42}, [%rd96];
	add.s64 	%rd97, %rd96, %rd24;
	ld.global.v4.u32 	{%r47, %r48, %r49, %r50}, [%rd97];
	add.s64 	%rd98, %rd97, %rd24;
	ld.global.v4.u32 	{%r55, %r56, %r57, %r58}, [%rd98];
	add.s64 	%rd100, %rd96, %rd99;
	ld.global.v4.u32 	{%r63, %r64, %r65, %r66}, [%rd100];
	st.global.v4.u32 	[%rd116], {%r63, %r64, %r65, %r66};
	add.s64 	%rd101, %rd116, %rd24;
	st.global.v4.u32 	[%rd101], {%r39, %r40, %r41, %r42};
	add.s64 	%rd102, %rd101, %rd24;
	st.global.v4.u32 	[%rd102], {%r47, %r48, %r49, %r50};
	add.s64 	%rd103, %rd102, %rd24;
	add.s64 	%rd116, %rd103, %rd24;
	st.global.v4.u32 	[%rd103], {%r55, %r56, %r57, %r58};
	add.s64 	%rd117, %rd94, %rd117;
	add.s64 	%rd104, %rd117, %rd23;
	setp.lt.u64 	%p22, %rd104, %rd34;
	@%p22 bra 	$L__BB0_21;
$L__BB0_22:
	setp.ge.u64 	%p23, %rd117, %rd34;
	@%p23 bra 	$L__BB0_24;
$L__BB0_23:
	.pragma "nounroll";
	shl.b64 	%rd105, %rd117, 4;
	add.s64 	%rd106, %rd2, %rd105;
	add.s64 	%rd107, %rd1, %rd105;
	ld.global.v4.u32 	{%r71, %r72, %r73, %r74}, [%rd106];
	st.global.v4.u32 	[%rd107], {%r71, %r72, %r73, %r74};
	add.s64 	%rd117, %rd117, %rd5;
	setp.lt.u64 	%p24, %rd117, %rd34;
	@%p24 bra 	$L__BB0_23;
$L__BB0_24:
	ret;
}
.visible .entry penstock_copy_if_changed(
	.param .u64 penstock_copy_if_changed_param_0,
	.param .u64 penstock_copy_if_changed_param_1,
	.param .u64 penstock_copy_if_changed_param_2,
	.param .u64 penstock_copy_if_changed_param_3
)
{
	.reg .pred 	%p<6>;
	.reg .b32 	%r<46>;
	.reg .b64 	%rd<48>;
	ld.param.u64 	%rd19, [penstock_copy_if_changed_param_0];
	ld.param.u64 	%rd18, [penstock_copy_if_changed_param_1];
	ld.param.u64 	%rd20, [penstock_copy_if_changed_param_2];
	ld.param.u64 	%rd21, [penstock_copy_if_changed_param_3];
	cvta.to.global.u64 	%rd1, %rd20;
	cvta.to.global.u64 	%rd2, %rd19;
	cvta.to.global.u64 	%rd22, %rd21;
	ld.global.u32 	%r1, [%rd22+4];
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB1_6;
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ntid.x;
	cvt.u64.u32 	%rd3, %r3;
	mul.wide.u32 	%rd23, %r2, %r3;
	mov.u32 	%r4, %tid.x;
	cvt.u64.u32 	%rd24, %r4;
	add.s64 	%rd46, %rd23, %rd24;
	mov.u32 	%r5, %nctaid.x;
	cvt.u64.u32 	%rd5, %r5;
	mul.wide.u32 	%rd6, %r5, %r3;
	mul.lo.s64 	%rd7, %rd6, 3;
	add.s64 	%rd25, %rd46, %rd7;
	setp.ge.u64 	%p2, %rd25, %rd18;
	@%p2 bra 	$L__BB1_4;
	mul.lo.s64 	%rd26, %rd5, %rd3;
	shl.b64 	%rd8, %rd26, 4;
	shl.b64 	%rd27, %rd46, 4;
	add.s64 	%rd45, %rd1, %rd27;
	neg.s64 	%rd10, %rd26;
	shl.b64 	%rd35, %rd10, 4;
$L__BB1_3:
	.pragma "nounroll";
	shl.b64 	%rd28, %rd46, 4;
	add.s64 	%rd29, %rd2, %rd28;
	shl.b64 	%rd30, %rd6, 2;
	shl.b64 	%rd31, %rd6, 4;
	add.s64 	%rd32, %rd29, %rd31;
	ld.global.v4.u32 	{%r6, %r7, %r8, %r9}, [%rd32];
	add.s64 	%rd33, %rd32, %rd8;
	ld.global.v4.u32 	{%r14, %r15, %r16, %r17}, [%rd33];
	add.s64 	%rd34, %rd33, %rd8;
	ld.global.v4.u32 	{%r22, %r23, %r24, %r25}, [%rd34];
	add.s64 	%rd36, %rd32, %rd35;
	ld.global.v4.u32 	{%r30, %r31, %r32, %r33}, [%rd36];
	st.global.v4.u32 	[%rd45], {%r30, %r31, %r32, %r33};
	add.s64 	%rd37, %rd45, %rd8;
	st.global.v4.u32 	[%rd37], {%r6, %r7, %r8, %r9};
	add.s64 	%rd38, %rd37, %rd8;
	st.global.v4.u32 	[%rd38], {%r14, %r15, %r16, %r17};
	add.s64 	%rd39, %rd38, %rd8;
	add.s64 	%rd45, %rd39, %rd8;
	st.global.v4.u32 	[%rd39], {%r22, %r23, %r24, %r25};
	add.s64 	%rd46, %rd30, %rd46;
	add.s64 	%rd40, %rd46, %rd7;
	setp.lt.u64 	%p3, %rd40, %rd18;
	@%p3 bra 	$L__BB1_3;
$L__BB1_4:
	setp.ge.u64 	%p4, %rd46, %rd18;
	@%p4 bra 	$L__BB1_6;
$L__BB1_5:
	.pragma "nounroll";
	shl.b64 	%rd41, %rd46, 4;
	add.s64 	%rd42, %rd2, %rd41;
	add.s64 	%rd43, %rd1, %rd41;
	ld.global.v4.u32 	{%r38, %r39, %r40, %r41}, [%rd42];
	st.global.v4.u32 	[%rd43], {%r38, %r39, %r40, %r41};
	add.s64 	%rd46, %rd46, %rd6;
	setp.lt.u64 	%p5, %rd46, %rd18;
	@%p5 bra 	$L__BB1_5;
$L__BB1_6:
	ret;
}
)ptx";

}  // namespace penstock::driver::cuda
