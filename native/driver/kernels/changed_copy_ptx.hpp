// SPDX-License-Identifier: Apache-2.0
// Made by tools/compile_kernels.py from changed_copy.cu; not to be edited.
#pragma once

namespace penstock::driver::cuda {

inline constexpr char kChangedCopyPtx[] = R"ptx(
.version 7.0
.target sm_75
.address_size 64

	// .globl	penstock_compare

.visible .entry penstock_compare(
	.param .u64 penstock_compare_param_0,
	.param .u64 penstock_compare_param_1,
	.param .u64 penstock_compare_param_2,
	.param .u64 penstock_compare_param_3
)
{
	.reg .pred 	%p<51>;
	.reg .b32 	%r<137>;
	.reg .b64 	%rd<195>;
	// demoted variable
	.shared .align 8 .b8 _ZZ6add_upPyE7of_warp[512];

	ld.param.u64 	%rd52, [penstock_compare_param_0];
	ld.param.u64 	%rd53, [penstock_compare_param_1];
	ld.param.u64 	%rd57, [penstock_compare_param_3];
	cvta.to.global.u64 	%rd1, %rd57;
	mov.u32 	%r1, %nctaid.x;
	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd2, %r2;
	mov.u32 	%r33, %ctaid.x;
	cvt.u64.u32 	%rd3, %r33;
	mul.wide.u32 	%rd58, %r33, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd59, %r3;
	add.s64 	%rd172, %rd58, %rd59;
	setp.ge.u64 	%p3, %rd172, %rd53;
	mov.u64 	%rd173, 0;
	mov.u64 	%rd174, %rd173;
	@%p3 bra 	$L__BB0_3;

	cvt.u64.u32 	%rd62, %r1;
	mul.lo.s64 	%rd5, %rd62, %rd2;
	cvta.to.global.u64 	%rd6, %rd52;
	mov.u64 	%rd173, 0;

$L__BB0_2:
	shl.b64 	%rd63, %rd172, 4;
	add.s64 	%rd64, %rd6, %rd63;
	ld.global.v4.u32 	{%r34, %r35, %r36, %r37}, [%rd64];
	cvt.u64.u32 	%rd65, %r34;
	cvt.u64.u32 	%rd66, %r35;
	bfi.b64 	%rd67, %rd66, %rd65, 32, 32;
	cvt.u64.u32 	%rd68, %r36;
	cvt.u64.u32 	%rd69, %r37;
	bfi.b64 	%rd70, %rd69, %rd68, 32, 32;
	mul.lo.s64 	%rd71, %rd172, -7046029254386353131;
	add.s64 	%rd72, %rd71, 2611923443488327891;
	mul.lo.s64 	%rd73, %rd172, -3335678366873096957;
	add.s64 	%rd74, %rd73, 1376283091369227076;
	xor.b64  	%rd75, %rd67, %rd72;
	xor.b64  	%rd76, %rd70, %rd74;
	mul.hi.u64 	%rd77, %rd75, %rd76;
	mul.lo.s64 	%rd78, %rd76, %rd75;
	xor.b64  	%rd79, %rd78, %rd77;
	add.s64 	%rd174, %rd79, %rd174;
	mov.u64 	%rd80, -1376283091369227077;
	sub.s64 	%rd81, %rd80, %rd73;
	xor.b64  	%rd82, %rd67, %rd81;
	mov.u64 	%rd83, -2611923443488327892;
	sub.s64 	%rd84, %rd83, %rd71;
	xor.b64  	%rd85, %rd70, %rd84;
	mul.hi.u64 	%rd86, %rd82, %rd85;
	mul.lo.s64 	%rd87, %rd85, %rd82;
	xor.b64  	%rd88, %rd87, %rd86;
	add.s64 	%rd173, %rd88, %rd173;
	add.s64 	%rd172, %rd172, %rd5;
	setp.lt.u64 	%p4, %rd172, %rd53;
	@%p4 bra 	$L__BB0_2;

$L__BB0_3:
	and.b32  	%r4, %r3, 31;
	mov.u32 	%r62, 31;
	setp.ne.s32 	%p5, %r4, 0;
	// begin inline asm
	mov.b64 {%r42,%r43}, %rd174;
	// end inline asm
	mov.u32 	%r63, 2;
	mov.u32 	%r64, 16;
	mov.u32 	%r65, -1;
	shfl.sync.down.b32 	%r45|%p6, %r43, %r64, %r62, %r65;
	shfl.sync.down.b32 	%r44|%p7, %r42, %r64, %r62, %r65;
	// begin inline asm
	mov.b64 %rd90, {%r44,%r45};
	// end inline asm
	add.s64 	%rd91, %rd174, %rd90;
	// begin inline asm
	mov.b64 {%r46,%r47}, %rd91;
	// end inline asm
	mov.u32 	%r66, 8;
	shfl.sync.down.b32 	%r49|%p8, %r47, %r66, %r62, %r65;
	shfl.sync.down.b32 	%r48|%p9, %r46, %r66, %r62, %r65;
	// begin inline asm
	mov.b64 %rd92, {%r48,%r49};
	// end inline asm
	add.s64 	%rd93, %rd91, %rd92;
	// begin inline asm
	mov.b64 {%r50,%r51}, %rd93;
	// end inline asm
	mov.u32 	%r67, 4;
	shfl.sync.down.b32 	%r53|%p10, %r51, %r67, %r62, %r65;
	shfl.sync.down.b32 	%r52|%p11, %r50, %r67, %r62, %r65;
	// begin inline asm
	mov.b64 %rd94, {%r52,%r53};
	// end inline asm
	add.s64 	%rd95, %rd93, %rd94;
	// begin inline asm
	mov.b64 {%r54,%r55}, %rd95;
	// end inline asm
	shfl.sync.down.b32 	%r57|%p12, %r55, %r63, %r62, %r65;
	shfl.sync.down.b32 	%r56|%p13, %r54, %r63, %r62, %r65;
	// begin inline asm
	mov.b64 %rd96, {%r56,%r57};
	// end inline asm
	add.s64 	%rd97, %rd95, %rd96;
	// begin inline asm
	mov.b64 {%r58,%r59}, %rd97;
	// end inline asm
	mov.u32 	%r68, 1;
	shfl.sync.down.b32 	%r61|%p14, %r59, %r68, %r62, %r65;
	shfl.sync.down.b32 	%r60|%p15, %r58, %r68, %r62, %r65;
	// begin inline asm
	mov.b64 %rd98, {%r60,%r61};
	// end inline asm
	add.s64 	%rd15, %rd97, %rd98;
	shr.u32 	%r69, %r3, 1;
	and.b32  	%r70, %r69, 2147483632;
	mov.u32 	%r71, _ZZ6add_upPyE7of_warp;
	add.s32 	%r5, %r71, %r70;
	@%p5 bra 	$L__BB0_5;

	st.shared.u64 	[%r5], %rd15;

$L__BB0_5:
	// begin inline asm
	mov.b64 {%r72,%r73}, %rd173;
	// end inline asm
	shfl.sync.down.b32 	%r75|%p17, %r73, %r64, %r62, %r65;
	shfl.sync.down.b32 	%r74|%p18, %r72, %r64, %r62, %r65;
	// begin inline asm
	mov.b64 %rd100, {%r74,%r75};
	// end inline asm
	add.s64 	%rd101, %rd173, %rd100;
	// begin inline asm
	mov.b64 {%r76,%r77}, %rd101;
	// end inline asm
	shfl.sync.down.b32 	%r79|%p19, %r77, %r66, %r62, %r65;
	shfl.sync.down.b32 	%r78|%p20, %r76, %r66, %r62, %r65;
	// begin inline asm
	mov.b64 %rd102, {%r78,%r79};
	// end inline asm
	add.s64 	%rd103, %rd101, %rd102;
	// begin inline asm
	mov.b64 {%r80,%r81}, %rd103;
	// end inline asm
	shfl.sync.down.b32 	%r83|%p21, %r81, %r67, %r62, %r65;
	shfl.sync.down.b32 	%r82|%p22, %r80, %r67, %r62, %r65;
	// begin inline asm
	mov.b64 %rd104, {%r82,%r83};
	// end inline asm
	add.s64 	%rd105, %rd103, %rd104;
	// begin inline asm
	mov.b64 {%r84,%r85}, %rd105;
	// end inline asm
	shfl.sync.down.b32 	%r87|%p23, %r85, %r63, %r62, %r65;
	shfl.sync.down.b32 	%r86|%p24, %r84, %r63, %r62, %r65;
	// begin inline asm
	mov.b64 %rd106, {%r86,%r87};
	// end inline asm
	add.s64 	%rd107, %rd105, %rd106;
	// begin inline asm
	mov.b64 {%r88,%r89}, %rd107;
	// end inline asm
	shfl.sync.down.b32 	%r91|%p25, %r89, %r68, %r62, %r65;
	shfl.sync.down.b32 	%r90|%p26, %r88, %r68, %r62, %r65;
	// begin inline asm
	mov.b64 %rd108, {%r90,%r91};
	// end inline asm
	add.s64 	%rd16, %rd107, %rd108;
	@%p5 bra 	$L__BB0_7;

	st.shared.u64 	[%r5+8], %rd16;

$L__BB0_7:
	mov.u32 	%r125, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p27, %r125, 0;
	@%p27 bra 	$L__BB0_36;

	mov.u32 	%r126, %ntid.x;
	shr.u32 	%r6, %r126, 5;
	setp.eq.s32 	%p28, %r6, 0;
	mov.u64 	%rd182, 0;
	mov.u64 	%rd178, %rd182;
	@%p28 bra 	$L__BB0_23;

	add.s32 	%r7, %r6, -1;
	and.b32  	%r8, %r6, 3;
	setp.lt.u32 	%p29, %r7, 3;
	mov.u32 	%r129, 0;
	mov.u64 	%rd178, 0;
	@%p29 bra 	$L__BB0_12;

	sub.s32 	%r128, %r6, %r8;
	mov.u32 	%r129, 0;
	mov.u64 	%rd178, 0;

$L__BB0_11:
	shl.b32 	%r101, %r129, 4;
	add.s32 	%r103, %r71, %r101;
	ld.shared.u64 	%rd114, [%r103];
	add.s64 	%rd115, %rd178, %rd114;
	ld.shared.u64 	%rd116, [%r103+16];
	add.s64 	%rd117, %rd115, %rd116;
	ld.shared.u64 	%rd118, [%r103+32];
	add.s64 	%rd119, %rd117, %rd118;
	ld.shared.u64 	%rd120, [%r103+48];
	add.s64 	%rd178, %rd119, %rd120;
	add.s32 	%r129, %r129, 4;
	add.s32 	%r128, %r128, -4;
	setp.ne.s32 	%p30, %r128, 0;
	@%p30 bra 	$L__BB0_11;

$L__BB0_12:
	setp.eq.s32 	%p31, %r8, 0;
	@%p31 bra 	$L__BB0_16;

	shl.b32 	%r104, %r129, 4;
	add.s32 	%r15, %r71, %r104;
	ld.shared.u64 	%rd121, [%r15];
	add.s64 	%rd178, %rd178, %rd121;
	setp.eq.s32 	%p32, %r8, 1;
	@%p32 bra 	$L__BB0_16;

	ld.shared.u64 	%rd122, [%r15+16];
	add.s64 	%rd178, %rd178, %rd122;
	setp.eq.s32 	%p33, %r8, 2;
	@%p33 bra 	$L__BB0_16;

	ld.shared.u64 	%rd123, [%r15+32];
	add.s64 	%rd178, %rd178, %rd123;

$L__BB0_16:
	mov.u32 	%r132, 0;
	mov.u64 	%rd182, 0;
	@%p29 bra 	$L__BB0_19;

	sub.s32 	%r131, %r6, %r8;
	mov.u32 	%r132, 0;
	mov.u64 	%rd182, 0;

$L__BB0_18:
	shl.b32 	%r108, %r132, 4;
	add.s32 	%r110, %r71, %r108;
	ld.shared.u64 	%rd127, [%r110+8];
	add.s64 	%rd128, %rd182, %rd127;
	ld.shared.u64 	%rd129, [%r110+24];
	add.s64 	%rd130, %rd128, %rd129;
	ld.shared.u64 	%rd131, [%r110+40];
	add.s64 	%rd132, %rd130, %rd131;
	ld.shared.u64 	%rd133, [%r110+56];
	add.s64 	%rd182, %rd132, %rd133;
	add.s32 	%r132, %r132, 4;
	add.s32 	%r131, %r131, -4;
	setp.ne.s32 	%p35, %r131, 0;
	@%p35 bra 	$L__BB0_18;

$L__BB0_19:
	@%p31 bra 	$L__BB0_23;

	shl.b32 	%r111, %r132, 4;
	add.s32 	%r113, %r71, %r111;
	ld.shared.u64 	%rd134, [%r113+8];
	add.s64 	%rd182, %rd182, %rd134;
	setp.eq.s32 	%p37, %r8, 1;
	@%p37 bra 	$L__BB0_23;

	add.s32 	%r123, %r113, 8;
	ld.shared.u64 	%rd135, [%r123+16];
	add.s64 	%rd182, %rd182, %rd135;
	setp.eq.s32 	%p38, %r8, 2;
	@%p38 bra 	$L__BB0_23;

	add.s32 	%r124, %r113, 8;
	ld.shared.u64 	%rd136, [%r124+32];
	add.s64 	%rd182, %rd182, %rd136;

$L__BB0_23:
	shl.b64 	%rd137, %rd3, 4;
	add.s64 	%rd138, %rd1, %rd137;
	st.global.u64 	[%rd138+8], %rd178;
	st.global.u64 	[%rd138+16], %rd182;
	membar.gl;
	atom.global.add.u32 	%r23, [%rd1], 1;
	add.s32 	%r114, %r1, -1;
	setp.ne.s32 	%p39, %r23, %r114;
	@%p39 bra 	$L__BB0_36;

	membar.gl;
	setp.eq.s32 	%p40, %r1, 0;
	mov.u64 	%rd193, 0;
	mov.u64 	%rd194, %rd193;
	@%p40 bra 	$L__BB0_31;

	and.b32  	%r136, %r1, 3;
	setp.lt.u32 	%p41, %r23, 3;
	mov.u64 	%rd194, 0;
	mov.u32 	%r135, 0;
	mov.u64 	%rd193, %rd194;
	@%p41 bra 	$L__BB0_28;

	sub.s32 	%r134, %r1, %r136;
	mov.u64 	%rd194, 0;
	mov.u32 	%r135, 0;

$L__BB0_27:
	mul.wide.u32 	%rd146, %r135, 16;
	add.s64 	%rd147, %rd1, %rd146;
	ld.volatile.global.u64 	%rd148, [%rd147+8];
	add.s64 	%rd149, %rd148, %rd194;
	ld.volatile.global.u64 	%rd150, [%rd147+16];
	add.s64 	%rd151, %rd150, %rd193;
	ld.volatile.global.u64 	%rd152, [%rd147+24];
	add.s64 	%rd153, %rd152, %rd149;
	ld.volatile.global.u64 	%rd154, [%rd147+32];
	add.s64 	%rd155, %rd154, %rd151;
	ld.volatile.global.u64 	%rd156, [%rd147+40];
	add.s64 	%rd157, %rd156, %rd153;
	ld.volatile.global.u64 	%rd158, [%rd147+48];
	add.s64 	%rd159, %rd158, %rd155;
	ld.volatile.global.u64 	%rd160, [%rd147+56];
	add.s64 	%rd194, %rd160, %rd157;
	ld.volatile.global.u64 	%rd161, [%rd147+64];
	add.s64 	%rd193, %rd161, %rd159;
	add.s32 	%r135, %r135, 4;
	add.s32 	%r134, %r134, -4;
	setp.ne.s32 	%p42, %r134, 0;
	@%p42 bra 	$L__BB0_27;

$L__BB0_28:
	setp.eq.s32 	%p43, %r136, 0;
	@%p43 bra 	$L__BB0_31;

	mul.wide.u32 	%rd162, %r135, 16;
	add.s64 	%rd163, %rd1, %rd162;
	add.s64 	%rd190, %rd163, 16;

$L__BB0_30:
	.pragma "nounroll";
	ld.volatile.global.u64 	%rd164, [%rd190+-8];
	add.s64 	%rd194, %rd164, %rd194;
	ld.volatile.global.u64 	%rd165, [%rd190];
	add.s64 	%rd193, %rd165, %rd193;
	add.s64 	%rd190, %rd190, 16;
	add.s32 	%r136, %r136, -1;
	setp.ne.s32 	%p44, %r136, 0;
	@%p44 bra 	$L__BB0_30;

$L__BB0_31:
	ld.param.u64 	%rd169, [penstock_compare_param_2];
	cvta.to.global.u64 	%rd166, %rd169;
	add.s64 	%rd51, %rd166, 16;
	ld.volatile.global.u32 	%r117, [%rd166+16];
	setp.eq.s32 	%p46, %r117, 0;
	mov.pred 	%p50, 0;
	@%p46 bra 	$L__BB0_34;

	ld.volatile.global.u64 	%rd167, [%rd51+-16];
	setp.ne.s64 	%p48, %rd167, %rd194;
	@%p48 bra 	$L__BB0_34;

	ld.volatile.global.u64 	%rd168, [%rd51+-8];
	setp.eq.s64 	%p50, %rd168, %rd193;

$L__BB0_34:
	not.pred 	%p49, %p50;
	selp.u32 	%r118, 1, 0, %p49;
	mov.u32 	%r119, 0;
	st.global.v2.u32 	[%rd1], {%r119, %r118};
	@%p50 bra 	$L__BB0_36;

	st.volatile.global.u64 	[%rd51+-16], %rd194;
	st.volatile.global.u64 	[%rd51+-8], %rd193;
	mov.u32 	%r120, 1;
	st.volatile.global.u32 	[%rd51], %r120;
	ld.volatile.global.u32 	%r121, [%rd51+4];
	add.s32 	%r122, %r121, 1;
	st.volatile.global.u32 	[%rd51+4], %r122;

$L__BB0_36:
	ret;

}
	// .globl	penstock_copy_if_changed
.visible .entry penstock_copy_if_changed(
	.param .u64 penstock_copy_if_changed_param_0,
	.param .u64 penstock_copy_if_changed_param_1,
	.param .u64 penstock_copy_if_changed_param_2,
	.param .u64 penstock_copy_if_changed_param_3
)
{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<14>;
	.reg .b64 	%rd<20>;


	ld.param.u64 	%rd8, [penstock_copy_if_changed_param_0];
	ld.param.u64 	%rd9, [penstock_copy_if_changed_param_1];
	ld.param.u64 	%rd10, [penstock_copy_if_changed_param_2];
	ld.param.u64 	%rd11, [penstock_copy_if_changed_param_3];
	cvta.to.global.u64 	%rd12, %rd11;
	ld.global.u32 	%r1, [%rd12+4];
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB1_4;

	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd1, %r2;
	mov.u32 	%r3, %ctaid.x;
	mul.wide.u32 	%rd13, %r3, %r2;
	mov.u32 	%r4, %tid.x;
	cvt.u64.u32 	%rd14, %r4;
	add.s64 	%rd19, %rd13, %rd14;
	setp.ge.u64 	%p2, %rd19, %rd9;
	@%p2 bra 	$L__BB1_4;

	cvta.to.global.u64 	%rd3, %rd10;
	cvta.to.global.u64 	%rd4, %rd8;
	mov.u32 	%r5, %nctaid.x;
	cvt.u64.u32 	%rd15, %r5;
	mul.lo.s64 	%rd5, %rd15, %rd1;

$L__BB1_3:
	shl.b64 	%rd16, %rd19, 4;
	add.s64 	%rd17, %rd4, %rd16;
	add.s64 	%rd18, %rd3, %rd16;
	ld.global.v4.u32 	{%r6, %r7, %r8, %r9}, [%rd17];
	st.global.v4.u32 	[%rd18], {%r6, %r7, %r8, %r9};
	add.s64 	%rd19, %rd19, %rd5;
	setp.lt.u64 	%p3, %rd19, %rd9;
	@%p3 bra 	$L__BB1_3;

$L__BB1_4:
	ret;

}
)ptx";

}  // namespace penstock::driver::cuda
