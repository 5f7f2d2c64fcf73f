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
	.param .u32 penstock_compare_param_3,
	.param .u64 penstock_compare_param_4,
	.param .u64 penstock_compare_param_5,
	.param .u64 penstock_compare_param_6
)
{
	.reg .pred 	%p<93>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<291>;
	.reg .b64 	%rd<286>;
	// demoted variable
	.shared .align 8 .b8 _ZZ6add_upPyE7of_warp[512];
	// demoted variable
	.shared .align 1 .u8 _ZZ16penstock_compareE4last;
	// demoted variable
	.shared .align 1 .u8 _ZZ16penstock_compareE7changed;

	ld.param.u64 	%rd95, [penstock_compare_param_0];
	ld.param.u64 	%rd90, [penstock_compare_param_1];
	ld.param.u64 	%rd97, [penstock_compare_param_6];
	cvta.to.global.u64 	%rd1, %rd95;
	cvta.to.global.u64 	%rd3, %rd97;
	mov.u32 	%r1, %nctaid.x;
	mov.u32 	%r42, %ntid.x;
	cvt.u64.u32 	%rd4, %r42;
	mov.u32 	%r43, %ctaid.x;
	mul.wide.u32 	%rd98, %r43, %r42;
	mov.u32 	%r2, %tid.x;
	cvt.u64.u32 	%rd6, %r2;
	add.s64 	%rd260, %rd98, %rd6;
	setp.ge.u64 	%p1, %rd260, %rd90;
	mov.u64 	%rd261, 0;
	mov.u64 	%rd262, %rd261;
	@%p1 bra 	$L__BB0_3;

	cvt.u64.u32 	%rd101, %r1;
	mul.lo.s64 	%rd8, %rd101, %rd4;
	mov.u64 	%rd261, 0;

$L__BB0_2:
	shl.b64 	%rd102, %rd260, 4;
	add.s64 	%rd103, %rd1, %rd102;
	ld.global.v4.u32 	{%r44, %r45, %r46, %r47}, [%rd103];
	cvt.u64.u32 	%rd104, %r44;
	cvt.u64.u32 	%rd105, %r45;
	bfi.b64 	%rd106, %rd105, %rd104, 32, 32;
	cvt.u64.u32 	%rd107, %r46;
	cvt.u64.u32 	%rd108, %r47;
	bfi.b64 	%rd109, %rd108, %rd107, 32, 32;
	mul.lo.s64 	%rd110, %rd260, -7046029254386353131;
	add.s64 	%rd111, %rd110, 2611923443488327891;
	mul.lo.s64 	%rd112, %rd260, -3335678366873096957;
	add.s64 	%rd113, %rd112, 1376283091369227076;
	xor.b64  	%rd114, %rd106, %rd111;
	xor.b64  	%rd115, %rd109, %rd113;
	mul.hi.u64 	%rd116, %rd114, %rd115;
	mul.lo.s64 	%rd117, %rd115, %rd114;
	xor.b64  	%rd118, %rd117, %rd116;
	add.s64 	%rd262, %rd118, %rd262;
	mov.u64 	%rd119, -1376283091369227077;
	sub.s64 	%rd120, %rd119, %rd112;
	xor.b64  	%rd121, %rd106, %rd120;
	mov.u64 	%rd122, -2611923443488327892;
	sub.s64 	%rd123, %rd122, %rd110;
	xor.b64  	%rd124, %rd109, %rd123;
	mul.hi.u64 	%rd125, %rd121, %rd124;
	mul.lo.s64 	%rd126, %rd124, %rd121;
	xor.b64  	%rd127, %rd126, %rd125;
	add.s64 	%rd261, %rd127, %rd261;
	add.s64 	%rd260, %rd260, %rd8;
	setp.lt.u64 	%p2, %rd260, %rd90;
	@%p2 bra 	$L__BB0_2;

$L__BB0_3:
	and.b32  	%r3, %r2, 31;
	mov.u32 	%r72, 31;
	setp.ne.s32 	%p3, %r3, 0;
	// begin inline asm
	mov.b64 {%r52,%r53}, %rd262;
	// end inline asm
	mov.u32 	%r73, 2;
	mov.u32 	%r74, 16;
	mov.u32 	%r75, -1;
	shfl.sync.down.b32 	%r55|%p4, %r53, %r74, %r72, %r75;
	shfl.sync.down.b32 	%r54|%p5, %r52, %r74, %r72, %r75;
	// begin inline asm
	mov.b64 %rd129, {%r54,%r55};
	// end inline asm
	add.s64 	%rd130, %rd262, %rd129;
	// begin inline asm
	mov.b64 {%r56,%r57}, %rd130;
	// end inline asm
	mov.u32 	%r76, 8;
	shfl.sync.down.b32 	%r59|%p6, %r57, %r76, %r72, %r75;
	shfl.sync.down.b32 	%r58|%p7, %r56, %r76, %r72, %r75;
	// begin inline asm
	mov.b64 %rd131, {%r58,%r59};
	// end inline asm
	add.s64 	%rd132, %rd130, %rd131;
	// begin inline asm
	mov.b64 {%r60,%r61}, %rd132;
	// end inline asm
	mov.u32 	%r77, 4;
	shfl.sync.down.b32 	%r63|%p8, %r61, %r77, %r72, %r75;
	shfl.sync.down.b32 	%r62|%p9, %r60, %r77, %r72, %r75;
	// begin inline asm
	mov.b64 %rd133, {%r62,%r63};
	// end inline asm
	add.s64 	%rd134, %rd132, %rd133;
	// begin inline asm
	mov.b64 {%r64,%r65}, %rd134;
	// end inline asm
	shfl.sync.down.b32 	%r67|%p10, %r65, %r73, %r72, %r75;
	shfl.sync.down.b32 	%r66|%p11, %r64, %r73, %r72, %r75;
	// begin inline asm
	mov.b64 %rd135, {%r66,%r67};
	// end inline asm
	add.s64 	%rd136, %rd134, %rd135;
	// begin inline asm
	mov.b64 {%r68,%r69}, %rd136;
	// end inline asm
	mov.u32 	%r78, 1;
	shfl.sync.down.b32 	%r71|%p12, %r69, %r78, %r72, %r75;
	shfl.sync.down.b32 	%r70|%p13, %r68, %r78, %r72, %r75;
	// begin inline asm
	mov.b64 %rd137, {%r70,%r71};
	// end inline asm
	shr.u32 	%r79, %r2, 1;
	and.b32  	%r80, %r79, 2147483632;
	mov.u32 	%r81, _ZZ6add_upPyE7of_warp;
	add.s32 	%r4, %r81, %r80;
	@%p3 bra 	$L__BB0_5;

	add.s64 	%rd138, %rd136, %rd137;
	st.shared.u64 	[%r4], %rd138;

$L__BB0_5:
	// begin inline asm
	mov.b64 {%r82,%r83}, %rd261;
	// end inline asm
	shfl.sync.down.b32 	%r85|%p15, %r83, %r74, %r72, %r75;
	shfl.sync.down.b32 	%r84|%p16, %r82, %r74, %r72, %r75;
	// begin inline asm
	mov.b64 %rd140, {%r84,%r85};
	// end inline asm
	add.s64 	%rd141, %rd261, %rd140;
	// begin inline asm
	mov.b64 {%r86,%r87}, %rd141;
	// end inline asm
	shfl.sync.down.b32 	%r89|%p17, %r87, %r76, %r72, %r75;
	shfl.sync.down.b32 	%r88|%p18, %r86, %r76, %r72, %r75;
	// begin inline asm
	mov.b64 %rd142, {%r88,%r89};
	// end inline asm
	add.s64 	%rd143, %rd141, %rd142;
	// begin inline asm
	mov.b64 {%r90,%r91}, %rd143;
	// end inline asm
	shfl.sync.down.b32 	%r93|%p19, %r91, %r77, %r72, %r75;
	shfl.sync.down.b32 	%r92|%p20, %r90, %r77, %r72, %r75;
	// begin inline asm
	mov.b64 %rd144, {%r92,%r93};
	// end inline asm
	add.s64 	%rd145, %rd143, %rd144;
	// begin inline asm
	mov.b64 {%r94,%r95}, %rd145;
	// end inline asm
	shfl.sync.down.b32 	%r97|%p21, %r95, %r73, %r72, %r75;
	shfl.sync.down.b32 	%r96|%p22, %r94, %r73, %r72, %r75;
	// begin inline asm
	mov.b64 %rd146, {%r96,%r97};
	// end inline asm
	add.s64 	%rd147, %rd145, %rd146;
	// begin inline asm
	mov.b64 {%r98,%r99}, %rd147;
	// end inline asm
	shfl.sync.down.b32 	%r101|%p23, %r99, %r78, %r72, %r75;
	shfl.sync.down.b32 	%r100|%p24, %r98, %r78, %r72, %r75;
	// begin inline asm
	mov.b64 %rd148, {%r100,%r101};
	// end inline asm
	@%p3 bra 	$L__BB0_7;

	add.s64 	%rd149, %rd147, %rd148;
	st.shared.u64 	[%r4+8], %rd149;

$L__BB0_7:
	mov.u32 	%r270, %tid.x;
	bar.sync 	0;
	setp.ne.s32 	%p25, %r270, 0;
	@%p25 bra 	$L__BB0_24;

	cvt.u32.u64 	%r109, %rd4;
	shr.u32 	%r5, %r109, 5;
	setp.eq.s32 	%p26, %r5, 0;
	mov.u64 	%rd270, 0;
	mov.u64 	%rd266, %rd270;
	@%p26 bra 	$L__BB0_23;

	add.s32 	%r6, %r5, -1;
	and.b32  	%r7, %r5, 3;
	setp.lt.u32 	%p27, %r6, 3;
	mov.u32 	%r280, 0;
	mov.u64 	%rd266, 0;
	@%p27 bra 	$L__BB0_12;

	sub.s32 	%r279, %r5, %r7;
	mov.u32 	%r280, 0;
	mov.u64 	%rd266, 0;

$L__BB0_11:
	shl.b32 	%r112, %r280, 4;
	add.s32 	%r114, %r81, %r112;
	ld.shared.u64 	%rd155, [%r114];
	add.s64 	%rd156, %rd266, %rd155;
	ld.shared.u64 	%rd157, [%r114+16];
	add.s64 	%rd158, %rd156, %rd157;
	ld.shared.u64 	%rd159, [%r114+32];
	add.s64 	%rd160, %rd158, %rd159;
	ld.shared.u64 	%rd161, [%r114+48];
	add.s64 	%rd266, %rd160, %rd161;
	add.s32 	%r280, %r280, 4;
	add.s32 	%r279, %r279, -4;
	setp.ne.s32 	%p28, %r279, 0;
	@%p28 bra 	$L__BB0_11;

$L__BB0_12:
	setp.eq.s32 	%p29, %r7, 0;
	@%p29 bra 	$L__BB0_16;

	shl.b32 	%r115, %r280, 4;
	add.s32 	%r14, %r81, %r115;
	ld.shared.u64 	%rd162, [%r14];
	add.s64 	%rd266, %rd266, %rd162;
	setp.eq.s32 	%p30, %r7, 1;
	@%p30 bra 	$L__BB0_16;

	ld.shared.u64 	%rd163, [%r14+16];
	add.s64 	%rd266, %rd266, %rd163;
	setp.eq.s32 	%p31, %r7, 2;
	@%p31 bra 	$L__BB0_16;

	ld.shared.u64 	%rd164, [%r14+32];
	add.s64 	%rd266, %rd266, %rd164;

$L__BB0_16:
	mov.u32 	%r283, 0;
	mov.u64 	%rd270, 0;
	@%p27 bra 	$L__BB0_19;

	sub.s32 	%r282, %r5, %r7;
	mov.u32 	%r283, 0;
	mov.u64 	%rd270, 0;

$L__BB0_18:
	shl.b32 	%r119, %r283, 4;
	add.s32 	%r121, %r81, %r119;
	ld.shared.u64 	%rd168, [%r121+8];
	add.s64 	%rd169, %rd270, %rd168;
	ld.shared.u64 	%rd170, [%r121+24];
	add.s64 	%rd171, %rd169, %rd170;
	ld.shared.u64 	%rd172, [%r121+40];
	add.s64 	%rd173, %rd171, %rd172;
	ld.shared.u64 	%rd174, [%r121+56];
	add.s64 	%rd270, %rd173, %rd174;
	add.s32 	%r283, %r283, 4;
	add.s32 	%r282, %r282, -4;
	setp.ne.s32 	%p33, %r282, 0;
	@%p33 bra 	$L__BB0_18;

$L__BB0_19:
	@%p29 bra 	$L__BB0_23;

	shl.b32 	%r122, %r283, 4;
	add.s32 	%r124, %r81, %r122;
	ld.shared.u64 	%rd175, [%r124+8];
	add.s64 	%rd270, %rd270, %rd175;
	setp.eq.s32 	%p35, %r7, 1;
	@%p35 bra 	$L__BB0_23;

	add.s32 	%r266, %r124, 8;
	ld.shared.u64 	%rd176, [%r266+16];
	add.s64 	%rd270, %rd270, %rd176;
	setp.eq.s32 	%p36, %r7, 2;
	@%p36 bra 	$L__BB0_23;

	add.s32 	%r267, %r124, 8;
	ld.shared.u64 	%rd177, [%r267+32];
	add.s64 	%rd270, %rd270, %rd177;

$L__BB0_23:
	mov.u32 	%r274, %ctaid.x;
	cvt.u64.u32 	%rd253, %r274;
	shl.b64 	%rd178, %rd253, 4;
	add.s64 	%rd179, %rd3, %rd178;
	st.global.u64 	[%rd179+8], %rd266;
	st.global.u64 	[%rd179+16], %rd270;
	membar.gl;
	atom.global.add.u32 	%r125, [%rd3], 1;
	add.s32 	%r126, %r1, -1;
	setp.eq.s32 	%p37, %r125, %r126;
	selp.u16 	%rs3, 1, 0, %p37;
	st.shared.u8 	[_ZZ16penstock_compareE4last], %rs3;

$L__BB0_24:
	bar.sync 	0;
	ld.shared.u8 	%rs4, [_ZZ16penstock_compareE4last];
	setp.eq.s16 	%p38, %rs4, 0;
	@%p38 bra 	$L__BB0_63;

	mov.u32 	%r271, %tid.x;
	membar.gl;
	setp.ge.u32 	%p39, %r271, %r1;
	mov.u64 	%rd274, 0;
	mov.u64 	%rd275, %rd274;
	@%p39 bra 	$L__BB0_28;

	mov.u32 	%r284, %tid.x;
	mov.u64 	%rd274, 0;
	cvt.u32.u64 	%r127, %rd4;

$L__BB0_27:
	mul.wide.u32 	%rd184, %r284, 16;
	add.s64 	%rd185, %rd3, %rd184;
	ld.volatile.global.u64 	%rd186, [%rd185+8];
	add.s64 	%rd275, %rd275, %rd186;
	ld.volatile.global.u64 	%rd187, [%rd185+16];
	add.s64 	%rd274, %rd274, %rd187;
	add.s32 	%r284, %r284, %r127;
	setp.lt.u32 	%p40, %r284, %r1;
	@%p40 bra 	$L__BB0_27;

$L__BB0_28:
	// begin inline asm
	mov.b64 {%r128,%r129}, %rd275;
	// end inline asm
	mov.u32 	%r148, 2;
	mov.u32 	%r149, 31;
	mov.u32 	%r150, 16;
	mov.u32 	%r151, -1;
	shfl.sync.down.b32 	%r131|%p41, %r129, %r150, %r149, %r151;
	shfl.sync.down.b32 	%r130|%p42, %r128, %r150, %r149, %r151;
	// begin inline asm
	mov.b64 %rd189, {%r130,%r131};
	// end inline asm
	add.s64 	%rd190, %rd275, %rd189;
	// begin inline asm
	mov.b64 {%r132,%r133}, %rd190;
	// end inline asm
	mov.u32 	%r152, 8;
	shfl.sync.down.b32 	%r135|%p43, %r133, %r152, %r149, %r151;
	shfl.sync.down.b32 	%r134|%p44, %r132, %r152, %r149, %r151;
	// begin inline asm
	mov.b64 %rd191, {%r134,%r135};
	// end inline asm
	add.s64 	%rd192, %rd190, %rd191;
	// begin inline asm
	mov.b64 {%r136,%r137}, %rd192;
	// end inline asm
	mov.u32 	%r153, 4;
	shfl.sync.down.b32 	%r139|%p45, %r137, %r153, %r149, %r151;
	shfl.sync.down.b32 	%r138|%p46, %r136, %r153, %r149, %r151;
	// begin inline asm
	mov.b64 %rd193, {%r138,%r139};
	// end inline asm
	add.s64 	%rd194, %rd192, %rd193;
	// begin inline asm
	mov.b64 {%r140,%r141}, %rd194;
	// end inline asm
	shfl.sync.down.b32 	%r143|%p47, %r141, %r148, %r149, %r151;
	shfl.sync.down.b32 	%r142|%p48, %r140, %r148, %r149, %r151;
	// begin inline asm
	mov.b64 %rd195, {%r142,%r143};
	// end inline asm
	add.s64 	%rd196, %rd194, %rd195;
	// begin inline asm
	mov.b64 {%r144,%r145}, %rd196;
	// end inline asm
	mov.u32 	%r154, 1;
	shfl.sync.down.b32 	%r147|%p49, %r145, %r154, %r149, %r151;
	shfl.sync.down.b32 	%r146|%p50, %r144, %r154, %r149, %r151;
	// begin inline asm
	mov.b64 %rd197, {%r146,%r147};
	// end inline asm
	@%p3 bra 	$L__BB0_30;

	add.s64 	%rd198, %rd196, %rd197;
	st.shared.u64 	[%r4], %rd198;

$L__BB0_30:
	// begin inline asm
	mov.b64 {%r155,%r156}, %rd274;
	// end inline asm
	shfl.sync.down.b32 	%r158|%p53, %r156, %r150, %r149, %r151;
	shfl.sync.down.b32 	%r157|%p54, %r155, %r150, %r149, %r151;
	// begin inline asm
	mov.b64 %rd200, {%r157,%r158};
	// end inline asm
	add.s64 	%rd201, %rd274, %rd200;
	// begin inline asm
	mov.b64 {%r159,%r160}, %rd201;
	// end inline asm
	shfl.sync.down.b32 	%r162|%p55, %r160, %r152, %r149, %r151;
	shfl.sync.down.b32 	%r161|%p56, %r159, %r152, %r149, %r151;
	// begin inline asm
	mov.b64 %rd202, {%r161,%r162};
	// end inline asm
	add.s64 	%rd203, %rd201, %rd202;
	// begin inline asm
	mov.b64 {%r163,%r164}, %rd203;
	// end inline asm
	shfl.sync.down.b32 	%r166|%p57, %r164, %r153, %r149, %r151;
	shfl.sync.down.b32 	%r165|%p58, %r163, %r153, %r149, %r151;
	// begin inline asm
	mov.b64 %rd204, {%r165,%r166};
	// end inline asm
	add.s64 	%rd205, %rd203, %rd204;
	// begin inline asm
	mov.b64 {%r167,%r168}, %rd205;
	// end inline asm
	shfl.sync.down.b32 	%r170|%p59, %r168, %r148, %r149, %r151;
	shfl.sync.down.b32 	%r169|%p60, %r167, %r148, %r149, %r151;
	// begin inline asm
	mov.b64 %rd206, {%r169,%r170};
	// end inline asm
	add.s64 	%rd207, %rd205, %rd206;
	// begin inline asm
	mov.b64 {%r171,%r172}, %rd207;
	// end inline asm
	shfl.sync.down.b32 	%r174|%p61, %r172, %r154, %r149, %r151;
	shfl.sync.down.b32 	%r173|%p62, %r171, %r154, %r149, %r151;
	// begin inline asm
	mov.b64 %rd208, {%r173,%r174};
	// end inline asm
	@%p3 bra 	$L__BB0_32;

	add.s64 	%rd209, %rd207, %rd208;
	st.shared.u64 	[%r4+8], %rd209;

$L__BB0_32:
	mov.u32 	%r275, %tid.x;
	setp.ne.s32 	%p92, %r275, 0;
	bar.sync 	0;
	@%p92 bra 	$L__BB0_53;

	cvt.u32.u64 	%r182, %rd4;
	shr.u32 	%r24, %r182, 5;
	setp.eq.s32 	%p64, %r24, 0;
	mov.u64 	%rd283, 0;
	mov.u64 	%rd279, %rd283;
	@%p64 bra 	$L__BB0_48;

	add.s32 	%r25, %r24, -1;
	and.b32  	%r26, %r24, 3;
	setp.lt.u32 	%p65, %r25, 3;
	mov.u32 	%r287, 0;
	mov.u64 	%rd279, 0;
	@%p65 bra 	$L__BB0_37;

	sub.s32 	%r286, %r24, %r26;
	mov.u32 	%r287, 0;
	mov.u64 	%rd279, 0;

$L__BB0_36:
	shl.b32 	%r185, %r287, 4;
	add.s32 	%r187, %r81, %r185;
	ld.shared.u64 	%rd215, [%r187];
	add.s64 	%rd216, %rd279, %rd215;
	ld.shared.u64 	%rd217, [%r187+16];
	add.s64 	%rd218, %rd216, %rd217;
	ld.shared.u64 	%rd219, [%r187+32];
	add.s64 	%rd220, %rd218, %rd219;
	ld.shared.u64 	%rd221, [%r187+48];
	add.s64 	%rd279, %rd220, %rd221;
	add.s32 	%r287, %r287, 4;
	add.s32 	%r286, %r286, -4;
	setp.ne.s32 	%p66, %r286, 0;
	@%p66 bra 	$L__BB0_36;

$L__BB0_37:
	setp.eq.s32 	%p67, %r26, 0;
	@%p67 bra 	$L__BB0_41;

	shl.b32 	%r188, %r287, 4;
	add.s32 	%r33, %r81, %r188;
	ld.shared.u64 	%rd222, [%r33];
	add.s64 	%rd279, %rd279, %rd222;
	setp.eq.s32 	%p68, %r26, 1;
	@%p68 bra 	$L__BB0_41;

	ld.shared.u64 	%rd223, [%r33+16];
	add.s64 	%rd279, %rd279, %rd223;
	setp.eq.s32 	%p69, %r26, 2;
	@%p69 bra 	$L__BB0_41;

	ld.shared.u64 	%rd224, [%r33+32];
	add.s64 	%rd279, %rd279, %rd224;

$L__BB0_41:
	mov.u32 	%r290, 0;
	mov.u64 	%rd283, 0;
	@%p65 bra 	$L__BB0_44;

	sub.s32 	%r289, %r24, %r26;
	mov.u32 	%r290, 0;
	mov.u64 	%rd283, 0;

$L__BB0_43:
	shl.b32 	%r192, %r290, 4;
	add.s32 	%r194, %r81, %r192;
	ld.shared.u64 	%rd228, [%r194+8];
	add.s64 	%rd229, %rd283, %rd228;
	ld.shared.u64 	%rd230, [%r194+24];
	add.s64 	%rd231, %rd229, %rd230;
	ld.shared.u64 	%rd232, [%r194+40];
	add.s64 	%rd233, %rd231, %rd232;
	ld.shared.u64 	%rd234, [%r194+56];
	add.s64 	%rd283, %rd233, %rd234;
	add.s32 	%r290, %r290, 4;
	add.s32 	%r289, %r289, -4;
	setp.ne.s32 	%p71, %r289, 0;
	@%p71 bra 	$L__BB0_43;

$L__BB0_44:
	@%p67 bra 	$L__BB0_48;

	shl.b32 	%r195, %r290, 4;
	add.s32 	%r197, %r81, %r195;
	ld.shared.u64 	%rd235, [%r197+8];
	add.s64 	%rd283, %rd283, %rd235;
	setp.eq.s32 	%p73, %r26, 1;
	@%p73 bra 	$L__BB0_48;

	add.s32 	%r268, %r197, 8;
	ld.shared.u64 	%rd236, [%r268+16];
	add.s64 	%rd283, %rd283, %rd236;
	setp.eq.s32 	%p74, %r26, 2;
	@%p74 bra 	$L__BB0_48;

	add.s32 	%r269, %r197, 8;
	ld.shared.u64 	%rd237, [%r269+32];
	add.s64 	%rd283, %rd283, %rd237;

$L__BB0_48:
	ld.param.u32 	%r272, [penstock_compare_param_3];
	setp.eq.s32 	%p75, %r272, 0;
	mov.u16 	%rs8, 1;
	@%p75 bra 	$L__BB0_51;

	ld.param.u64 	%rd247, [penstock_compare_param_2];
	cvta.to.global.u64 	%rd246, %rd247;
	ld.global.u64 	%rd238, [%rd246];
	setp.ne.s64 	%p76, %rd238, %rd279;
	@%p76 bra 	$L__BB0_51;

	ld.param.u64 	%rd249, [penstock_compare_param_2];
	cvta.to.global.u64 	%rd248, %rd249;
	ld.global.u64 	%rd239, [%rd248+8];
	setp.ne.s64 	%p77, %rd239, %rd283;
	selp.u16 	%rs8, 1, 0, %p77;

$L__BB0_51:
	ld.param.u64 	%rd257, [penstock_compare_param_6];
	cvta.to.global.u64 	%rd256, %rd257;
	st.shared.u8 	[_ZZ16penstock_compareE7changed], %rs8;
	cvt.u32.u16 	%r198, %rs8;
	mov.u32 	%r199, 0;
	st.global.v2.u32 	[%rd256], {%r199, %r198};
	setp.eq.s16 	%p78, %rs8, 0;
	@%p78 bra 	$L__BB0_53;

	ld.param.u64 	%rd252, [penstock_compare_param_4];
	ld.param.u64 	%rd251, [penstock_compare_param_2];
	cvta.to.global.u64 	%rd250, %rd251;
	cvta.to.global.u64 	%rd240, %rd252;
	st.global.u64 	[%rd250], %rd279;
	st.global.u64 	[%rd250+8], %rd283;
	ld.volatile.global.u32 	%r200, [%rd240];
	add.s32 	%r201, %r200, 1;
	st.volatile.global.u32 	[%rd240], %r201;

$L__BB0_53:
	mov.u32 	%r276, %tid.x;
	cvt.u64.u32 	%rd254, %r276;
	ld.param.u64 	%rd244, [penstock_compare_param_5];
	bar.sync 	0;
	ld.shared.u8 	%rs7, [_ZZ16penstock_compareE7changed];
	setp.eq.s16 	%p79, %rs7, 0;
	setp.eq.s64 	%p80, %rd244, 0;
	or.pred  	%p81, %p80, %p79;
	setp.ge.u64 	%p82, %rd254, %rd90;
	or.pred  	%p83, %p81, %p82;
	@%p83 bra 	$L__BB0_63;

	mov.u32 	%r277, %tid.x;
	cvt.u64.u32 	%rd285, %r277;
	ld.param.u64 	%rd245, [penstock_compare_param_5];
	shl.b64 	%rd65, %rd4, 4;
	cvta.to.global.u64 	%rd66, %rd245;

$L__BB0_55:
	.pragma "nounroll";
	shl.b64 	%rd241, %rd285, 4;
	add.s64 	%rd68, %rd1, %rd241;
	add.s64 	%rd69, %rd66, %rd241;
	ld.global.v4.u32 	{%r202, %r203, %r204, %r205}, [%rd68];
	st.global.v4.u32 	[%rd69], {%r202, %r203, %r204, %r205};
	add.s64 	%rd70, %rd285, %rd4;
	setp.ge.u64 	%p84, %rd70, %rd90;
	@%p84 bra 	$L__BB0_63;

	add.s64 	%rd71, %rd68, %rd65;
	ld.global.v4.u32 	{%r210, %r211, %r212, %r213}, [%rd71];
	add.s64 	%rd72, %rd69, %rd65;
	st.global.v4.u32 	[%rd72], {%r210, %r211, %r212, %r213};
	add.s64 	%rd73, %rd70, %rd4;
	setp.ge.u64 	%p85, %rd73, %rd90;
	@%p85 bra 	$L__BB0_63;

	add.s64 	%rd74, %rd71, %rd65;
	ld.global.v4.u32 	{%r218, %r219, %r220, %r221}, [%rd74];
	add.s64 	%rd75, %rd72, %rd65;
	st.global.v4.u32 	[%rd75], {%r218, %r219, %r220, %r221};
	add.s64 	%rd76, %rd73, %rd4;
	setp.ge.u64 	%p86, %rd76, %rd90;
	@%p86 bra 	$L__BB0_63;

	add.s64 	%rd77, %rd74, %rd65;
	ld.global.v4.u32 	{%r226, %r227, %r228, %r229}, [%rd77];
	add.s64 	%rd78, %rd75, %rd65;
	st.global.v4.u32 	[%rd78], {%r226, %r227, %r228, %r229};
	add.s64 	%rd79, %rd76, %rd4;
	setp.ge.u64 	%p87, %rd79, %rd90;
	@%p87 bra 	$L__BB0_63;

	add.s64 	%rd80, %rd77, %rd65;
	ld.global.v4.u32 	{%r234, %r235, %r236, %r237}, [%rd80];
	add.s64 	%rd81, %rd78, %rd65;
	st.global.v4.u32 	[%rd81], {%r234, %r235, %r236, %r237};
	add.s64 	%rd82, %rd79, %rd4;
	setp.ge.u64 	%p88, %rd82, %rd90;
	@%p88 bra 	$L__BB0_63;

	add.s64 	%rd83, %rd80, %rd65;
	ld.global.v4.u32 	{%r242, %r243, %r244, %r245}, [%rd83];
	add.s64 	%rd84, %rd81, %rd65;
	st.global.v4.u32 	[%rd84], {%r242, %r243, %r244, %r245};
	add.s64 	%rd85, %rd82, %rd4;
	setp.ge.u64 	%p89, %rd85, %rd90;
	@%p89 bra 	$L__BB0_63;

	add.s64 	%rd86, %rd83, %rd65;
	ld.global.v4.u32 	{%r250, %r251, %r252, %r253}, [%rd86];
	add.s64 	%rd87, %rd84, %rd65;
	st.global.v4.u32 	[%rd87], {%r250, %r251, %r252, %r253};
	add.s64 	%rd88, %rd85, %rd4;
	setp.ge.u64 	%p90, %rd88, %rd90;
	@%p90 bra 	$L__BB0_63;

	add.s64 	%rd242, %rd86, %rd65;
	ld.global.v4.u32 	{%r258, %r259, %r260, %r261}, [%rd242];
	add.s64 	%rd243, %rd87, %rd65;
	st.global.v4.u32 	[%rd243], {%r258, %r259, %r260, %r261};
	add.s64 	%rd285, %rd88, %rd4;
	setp.lt.u64 	%p91, %rd285, %rd90;
	@%p91 bra 	$L__BB0_55;

$L__BB0_63:
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
	.reg .pred 	%p<11>;
	.reg .b32 	%r<70>;
	.reg .b64 	%rd<43>;


	ld.param.u64 	%rd31, [penstock_copy_if_changed_param_0];
	ld.param.u64 	%rd32, [penstock_copy_if_changed_param_1];
	ld.param.u64 	%rd33, [penstock_copy_if_changed_param_2];
	ld.param.u64 	%rd34, [penstock_copy_if_changed_param_3];
	cvta.to.global.u64 	%rd35, %rd34;
	ld.global.u32 	%r1, [%rd35+4];
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB1_11;

	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ntid.x;
	cvt.u64.u32 	%rd1, %r3;
	mul.wide.u32 	%rd36, %r2, %r3;
	mov.u32 	%r4, %tid.x;
	cvt.u64.u32 	%rd37, %r4;
	add.s64 	%rd42, %rd36, %rd37;
	mov.u32 	%r5, %nctaid.x;
	cvt.u64.u32 	%rd3, %r5;
	mul.wide.u32 	%rd4, %r5, %r3;
	setp.ge.u64 	%p2, %rd42, %rd32;
	@%p2 bra 	$L__BB1_11;

	mul.lo.s64 	%rd38, %rd3, %rd1;
	shl.b64 	%rd5, %rd38, 4;
	cvta.to.global.u64 	%rd6, %rd33;
	cvta.to.global.u64 	%rd7, %rd31;

$L__BB1_3:
	.pragma "nounroll";
	shl.b64 	%rd39, %rd42, 4;
	add.s64 	%rd9, %rd7, %rd39;
	add.s64 	%rd10, %rd6, %rd39;
	ld.global.v4.u32 	{%r6, %r7, %r8, %r9}, [%rd9];
	st.global.v4.u32 	[%rd10], {%r6, %r7, %r8, %r9};
	add.s64 	%rd11, %rd42, %rd4;
	setp.ge.u64 	%p3, %rd11, %rd32;
	@%p3 bra 	$L__BB1_11;

	add.s64 	%rd12, %rd9, %rd5;
	ld.global.v4.u32 	{%r14, %r15, %r16, %r17}, [%rd12];
	add.s64 	%rd13, %rd10, %rd5;
	st.global.v4.u32 	[%rd13], {%r14, %r15, %r16, %r17};
	add.s64 	%rd14, %rd11, %rd4;
	setp.ge.u64 	%p4, %rd14, %rd32;
	@%p4 bra 	$L__BB1_11;

	add.s64 	%rd15, %rd12, %rd5;
	ld.global.v4.u32 	{%r22, %r23, %r24, %r25}, [%rd15];
	add.s64 	%rd16, %rd13, %rd5;
	st.global.v4.u32 	[%rd16], {%r22, %r23, %r24, %r25};
	add.s64 	%rd17, %rd14, %rd4;
	setp.ge.u64 	%p5, %rd17, %rd32;
	@%p5 bra 	$L__BB1_11;

	add.s64 	%rd18, %rd15, %rd5;
	ld.global.v4.u32 	{%r30, %r31, %r32, %r33}, [%rd18];
	add.s64 	%rd19, %rd16, %rd5;
	st.global.v4.u32 	[%rd19], {%r30, %r31, %r32, %r33};
	add.s64 	%rd20, %rd17, %rd4;
	setp.ge.u64 	%p6, %rd20, %rd32;
	@%p6 bra 	$L__BB1_11;

	add.s64 	%rd21, %rd18, %rd5;
	ld.global.v4.u32 	{%r38, %r39, %r40, %r41}, [%rd21];
	add.s64 	%rd22, %rd19, %rd5;
	st.global.v4.u32 	[%rd22], {%r38, %r39, %r40, %r41};
	add.s64 	%rd23, %rd20, %rd4;
	setp.ge.u64 	%p7, %rd23, %rd32;
	@%p7 bra 	$L__BB1_11;

	add.s64 	%rd24, %rd21, %rd5;
	ld.global.v4.u32 	{%r46, %r47, %r48, %r49}, [%rd24];
	add.s64 	%rd25, %rd22, %rd5;
	st.global.v4.u32 	[%rd25], {%r46, %r47, %r48, %r49};
	add.s64 	%rd26, %rd23, %rd4;
	setp.ge.u64 	%p8, %rd26, %rd32;
	@%p8 bra 	$L__BB1_11;

	add.s64 	%rd27, %rd24, %rd5;
	ld.global.v4.u32 	{%r54, %r55, %r56, %r57}, [%rd27];
	add.s64 	%rd28, %rd25, %rd5;
	st.global.v4.u32 	[%rd28], {%r54, %r55, %r56, %r57};
	add.s64 	%rd29, %rd26, %rd4;
	setp.ge.u64 	%p9, %rd29, %rd32;
	@%p9 bra 	$L__BB1_11;

	add.s64 	%rd40, %rd27, %rd5;
	ld.global.v4.u32 	{%r62, %r63, %r64, %r65}, [%rd40];
	add.s64 	%rd41, %rd28, %rd5;
	st.global.v4.u32 	[%rd41], {%r62, %r63, %r64, %r65};
	add.s64 	%rd42, %rd29, %rd4;
	setp.lt.u64 	%p10, %rd42, %rd32;
	@%p10 bra 	$L__BB1_3;

$L__BB1_11:
	ret;

}
)ptx";

}  // namespace penstock::driver::cuda
