// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from changed_copy.cu; not to be edited. Its SHA-256:
// c0486db0b657e32ea39df812f30a6ff80d443c8da6f1f001c417e222473feb39
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
	.reg .pred 	%p<27>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<80>;
	.reg .b64 	%rd<122>;
	.shared .align 8 .b8 _ZZ16penstock_compareE8of_block[16];
	.shared .align 1 .u8 _ZZ16penstock_compareE4last;
	.shared .align 1 .u8 _ZZ16penstock_compareE7changed;
	ld.param.u64 	%rd37, [penstock_compare_param_0];
	ld.param.u64 	%rd35, [penstock_compare_param_1];
	ld.param.u64 	%rd38, [penstock_compare_param_2];
	ld.param.u32 	%r4, [penstock_compare_param_3];
	ld.param.u64 	%rd39, [penstock_compare_param_4];
	ld.param.u64 	%rd36, [penstock_compare_param_5];
	ld.param.u64 	%rd40, [penstock_compare_param_6];
	cvta.to.global.u64 	%rd1, %rd36;
	cvta.to.global.u64 	%rd2, %rd37;
	cvta.to.global.u64 	%rd3, %rd39;
	cvta.to.global.u64 	%rd4, %rd38;
	cvta.to.global.u64 	%rd5, %rd40;
	mov.u32 	%r1, %tid.x;
	setp.gt.u32 	%p1, %r1, 1;
	@%p1 bra 	$L__BB0_2;
	shl.b32 	%r5, %r1, 3;
	mov.u32 	%r6, _ZZ16penstock_compareE8of_block;
	add.s32 	%r7, %r6, %r5;
	mov.u64 	%rd41, 0;
	st.shared.u64 	[%r7], %rd41;
$L__BB0_2:
	bar.sync 	0;
	mov.u32 	%r8, %ntid.x;
	cvt.u64.u32 	%rd6, %r8;
	mov.u32 	%r9, %ctaid.x;
	mul.wide.u32 	%rd44, %r9, %r8;
	cvt.u64.u32 	%rd120, %r1;
	add.s64 	%rd111, %rd44, %rd120;
	setp.ge.u64 	%p2, %rd111, %rd35;
	mov.u64 	%rd114, 0;
	mov.u64 	%rd115, %rd114;
	@%p2 bra 	$L__BB0_5;
	mov.u32 	%r10, %nctaid.x;
	cvt.u64.u32 	%rd47, %r10;
	mul.lo.s64 	%rd9, %rd47, %rd6;
	mov.u64 	%rd115, 0;
	mov.u64 	%rd114, %rd115;
$L__BB0_4:
	shl.b64 	%rd48, %rd111, 4;
	add.s64 	%rd49, %rd2, %rd48;
	ld.global.v4.u32 	{%r11, %r12, %r13, %r14}, [%rd49];
	cvt.u64.u32 	%rd50, %r11;
	cvt.u64.u32 	%rd51, %r12;
	bfi.b64 	%rd52, %rd51, %rd50, 32, 32;
	cvt.u64.u32 	%rd53, %r13;
	cvt.u64.u32 	%rd54, %r14;
	bfi.b64 	%rd55, %rd54, %rd53, 32, 32;
	mul.lo.s64 	%rd56, %rd111, -7046029254386353131;
	add.s64 	%rd57, %rd56, 2611923443488327891;
	mul.lo.s64 	%rd58, %rd111, -3335678366873096957;
	add.s64 	%rd59, %rd58, 1376283091369227076;
	xor.b64  	%rd60, %rd52, %rd57;
	xor.b64  	%rd61, %rd55, %rd59;
	mul.hi.u64 	%rd62, %rd60, %rd61;
	mul.lo.s64 	%rd63, %rd61, %rd60;
	xor.b64  	%rd64, %rd63, %rd62;
	add.s64 	%rd115, %rd64, %rd115;
	mov.u64 	%rd65, -1376283091369227077;
	sub.s64 	%rd66, %rd65, %rd58;
	xor.b64  	%rd67, %rd52, %rd66;
	mov.u64 	%rd68, -2611923443488327892;
	sub.s64 	%rd69, %rd68, %rd56;
	xor.b64  	%rd70, %rd55, %rd69;
	mul.hi.u64 	%rd71, %rd67, %rd70;
	mul.lo.s64 	%rd72, %rd70, %rd67;
	xor.b64  	%rd73, %rd72, %rd71;
	add.s64 	%rd114, %rd73, %rd114;
	add.s64 	%rd111, %rd111, %rd9;
	setp.lt.u64 	%p3, %rd111, %rd35;
	@%p3 bra 	$L__BB0_4;
$L__BB0_5:
	mov.u32 	%r79, 16;
$L__BB0_6:
	.pragma "nounroll";
	mov.b64 {%r20,%r21}, %rd115;
	mov.u32 	%r28, 31;
	mov.u32 	%r29, -1;
	shfl.sync.down.b32 	%r23|%p4, %r21, %r79, %r28, %r29;
	shfl.sync.down.b32 	%r22|%p5, %r20, %r79, %r28, %r29;
	mov.b64 %rd75, {%r22,%r23};
	add.s64 	%rd115, %rd75, %rd115;
	mov.b64 {%r24,%r25}, %rd114;
	shfl.sync.down.b32 	%r27|%p6, %r25, %r79, %r28, %r29;
	shfl.sync.down.b32 	%r26|%p7, %r24, %r79, %r28, %r29;
	mov.b64 %rd77, {%r26,%r27};
	add.s64 	%rd114, %rd77, %rd114;
	shr.u32 	%r79, %r79, 1;
	setp.ne.s32 	%p8, %r79, 0;
	@%p8 bra 	$L__BB0_6;
	and.b32  	%r30, %r1, 31;
	setp.ne.s32 	%p9, %r30, 0;
	@%p9 bra 	$L__BB0_9;
	mov.u32 	%r31, _ZZ16penstock_compareE8of_block;
	atom.shared.add.u64 	%rd78, [%r31], %rd115;
	add.s32 	%r32, %r31, 8;
	atom.shared.add.u64 	%rd79, [%r32], %rd114;
$L__BB0_9:
	bar.sync 	0;
	setp.ne.s32 	%p10, %r1, 0;
	@%p10 bra 	$L__BB0_11;
	add.s64 	%rd80, %rd5, 8;
	ld.shared.u64 	%rd81, [_ZZ16penstock_compareE8of_block];
	atom.global.add.u64 	%rd82, [%rd80], %rd81;
	ld.shared.u64 	%rd83, [_ZZ16penstock_compareE8of_block+8];
	add.s64 	%rd84, %rd5, 16;
	atom.global.add.u64 	%rd85, [%rd84], %rd83;
	membar.gl;
	atom.global.add.u64 	%rd86, [%rd5], 1;
	mov.u32 	%r33, %nctaid.x;
	add.s32 	%r34, %r33, -1;
	cvt.u64.u32 	%rd87, %r34;
	setp.eq.s64 	%p11, %rd86, %rd87;
	selp.u16 	%rs3, 1, 0, %p11;
	st.shared.u8 	[_ZZ16penstock_compareE4last], %rs3;
$L__BB0_11:
	bar.sync 	0;
	ld.shared.u8 	%rs4, [_ZZ16penstock_compareE4last];
	setp.eq.s16 	%p12, %rs4, 0;
	@%p12 bra 	$L__BB0_27;
	@%p10 bra 	$L__BB0_21;
	bra.uni 	$L__BB0_13;
$L__BB0_21:
	bar.sync 	0;
	ld.shared.u8 	%rs7, [_ZZ16penstock_compareE7changed];
	setp.eq.s16 	%p20, %rs7, 0;
	setp.eq.s64 	%p21, %rd36, 0;
	or.pred  	%p22, %p21, %p20;
	@%p22 bra 	$L__BB0_27;
	mul.lo.s64 	%rd24, %rd6, 3;
	add.s64 	%rd93, %rd24, %rd120;
	setp.ge.u64 	%p23, %rd93, %rd35;
	@%p23 bra 	$L__BB0_25;
	shl.b64 	%rd25, %rd6, 4;
	shl.b64 	%rd94, %rd120, 4;
	add.s64 	%rd119, %rd1, %rd94;
	neg.s64 	%rd27, %rd6;
	shl.b64 	%rd102, %rd27, 4;
$L__BB0_24:
	.pragma "nounroll";
	shl.b64 	%rd95, %rd120, 4;
	add.s64 	%rd96, %rd2, %rd95;
	shl.b64 	%rd97, %rd6, 2;
	add.s64 	%rd99, %rd96, %rd25;
	ld.global.v4.u32 	{%r39, %r40, %r41, %r42}, [%rd99];
	add.s64 	%rd100, %rd99, %rd25;
	ld.global.v4.u32 	{%r47, %r48, %r49, %r50}, [%rd100];
	add.s64 	%rd101, %rd100, %rd25;
	ld.global.v4.u32 	{%r55, %r56, %r57, %r58}, [%rd101];
	add.s64 	%rd103, %rd99, %rd102;
	ld.global.v4.u32 	{%r63, %r64, %r65, %r66}, [%rd103];
	st.global.v4.u32 	[%rd119], {%r63, %r64, %r65, %r66};
	add.s64 	%rd104, %rd119, %rd25;
	st.global.v4.u32 	[%rd104], {%r39, %r40, %r41, %r42};
	add.s64 	%rd105, %rd104, %rd25;
	st.global.v4.u32 	[%rd105], {%r47, %r48, %r49, %r50};
	add.s64 	%rd106, %rd105, %rd25;
	add.s64 	%rd119, %rd106, %rd25;
	st.global.v4.u32 	[%rd106], {%r55, %r56, %r57, %r58};
	add.s64 	%rd120, %rd97, %rd120;
	add.s64 	%rd107, %rd120, %rd24;
	setp.lt.u64 	%p24, %rd107, %rd35;
	@%p24 bra 	$L__BB0_24;
$L__BB0_25:
	setp.ge.u64 	%p25, %rd120, %rd35;
	@%p25 bra 	$L__BB0_27;
$L__BB0_26:
	.pragma "nounroll";
	shl.b64 	%rd108, %rd120, 4;
	add.s64 	%rd109, %rd2, %rd108;
	add.s64 	%rd110, %rd1, %rd108;
	ld.global.v4.u32 	{%r71, %r72, %r73, %r74}, [%rd109];
	st.global.v4.u32 	[%rd110], {%r71, %r72, %r73, %r74};
	add.s64 	%rd120, %rd120, %rd6;
	setp.lt.u64 	%p26, %rd120, %rd35;
	@%p26 bra 	$L__BB0_26;
$L__BB0_27:
	ret;
$L__BB0_13:
	membar.gl;
	add.s64 	%rd88, %rd5, 8;
	atom.global.exch.b64 	%rd22, [%rd88], 0;
	add.s64 	%rd89, %rd5, 16;
	atom.global.exch.b64 	%rd23, [%rd89], 0;
	setp.eq.s32 	%p14, %r4, 0;
	mov.u16 	%rs8, 1;
	@%p14 bra 	$L__BB0_16;
	ld.global.u64 	%rd90, [%rd4];
	setp.ne.s64 	%p15, %rd90, %rd22;
	@%p15 bra 	$L__BB0_16;
	ld.global.u64 	%rd91, [%rd4+8];
	setp.ne.s64 	%p16, %rd91, %rd23;
	selp.u16 	%rs8, 1, 0, %p16;
$L__BB0_16:
	st.shared.u8 	[_ZZ16penstock_compareE7changed], %rs8;
	mov.u64 	%rd92, 0;
	st.global.u64 	[%rd5], %rd92;
	setp.eq.s16 	%p17, %rs8, 0;
	@%p17 bra 	$L__BB0_21;
	st.global.u64 	[%rd4], %rd22;
	st.global.u64 	[%rd4+8], %rd23;
	@%p14 bra 	$L__BB0_19;
	ld.volatile.global.u32 	%r35, [%rd3];
	add.s32 	%r36, %r35, 1;
	st.volatile.global.u32 	[%rd3], %r36;
$L__BB0_19:
	setp.eq.s64 	%p19, %rd36, 0;
	@%p19 bra 	$L__BB0_21;
	ld.volatile.global.u32 	%r37, [%rd3+4];
	add.s32 	%r38, %r37, 1;
	st.volatile.global.u32 	[%rd3+4], %r38;
	bra.uni 	$L__BB0_21;
}
)ptx";

}  // namespace penstock::driver::cuda
