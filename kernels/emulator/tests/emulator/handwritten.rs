//! PTX by hand, for what a compiler does not write unless somebody errs.

use crate::common::Arg::{Int, Pointer};
use cuda_emulator::config::Config;
use cuda_emulator::result::Code;

use crate::common::Rig;

/// A module with one kernel `k(out, x, n)`, whose pointers are in %out and %x, and n in %n; %t is the thread.
fn kernel(body: &str) -> Rig {
    let ptx = format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u32 p2)\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<16>, %n, %t;\n.reg .f32 %f<16>;\n.reg .b64 %rd<8>, %out, %x, %at, %from;\n\
         .shared .align 16 .b8 tile[512];\n.local .align 16 .b8 depot[16];\n\
         ld.param.u64 %out, [p0];\nld.param.u64 %x, [p1];\nld.param.u32 %n, [p2];\nmov.u32 %t, %tid.x;\n\
         mul.wide.u32 %rd0, %t, 4;\nadd.u64 %at, %out, %rd0;\nadd.u64 %from, %x, %rd0;\n\
         {body}\n\
         st.global.u32 [%at], %r0;\nret;\n}}\n"
    );
    Rig::from_text(&ptx, Config::default())
}

/// Runs it on 32 threads with 32 words in and room for 32 words out.
fn run(body: &str, n: i32) -> (Rig, Result<Vec<u32>, Code>) {
    let mut rig = kernel(body);
    let x: Vec<u32> = (100..132).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(128));
    let result = rig.run("k", 1, 32, &[Pointer(out), Pointer(dx), Int(n)]).map(|()| rig.download::<u32>(out, 32));
    (rig, result)
}

#[track_caller]
fn finds(body: &str, n: i32, code: Code, words: &str) {
    let (rig, result) = run(body, n);
    assert_eq!(result, Err(code), "`{}`", rig.report());
    assert!(rig.report().contains(words), "`{}` does not say `{words}`", rig.report());
}

#[test]
fn local_memory_has_bounds_and_wants_to_be_written() {
    let body = "mov.u32 %r1, depot;\nadd.u32 %r1, %r1, %n;\nst.local.u32 [%r1], %t;\nld.local.u32 %r0, [%r1];";
    assert_eq!(run(body, 12).1.unwrap()[31], 31);
    finds(body, 16, Code::IllegalAddress, "write of local memory at 0x10, of 16 bytes");
    finds("mov.u32 %r1, depot;\nld.local.u32 %r0, [%r1+4];", 0, Code::LaunchFailed, "read of local memory at 0x4");
}

#[test]
fn matrix_instructions_want_all_lanes() {
    let body = "setp.lt.s32 %p1, %t, %n;\nmov.f32 %f0, 0f00000000;\nmov.u32 %r0, 0;\n\
        @%p1 mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1,%f2,%f3,%f4}, {%r0,%r0,%r0,%r0}, {%r0,%r0}, \
        {%f0,%f0,%f0,%f0};";
    assert!(run(body, 32).1.is_ok());
    finds(body, 31, Code::LaunchFailed, "thread (31, 0, 0): this instruction wants all 32 lanes");
}

#[test]
fn a_jump_table_has_an_end() {
    let body = "brx.idx %n, table;\ntable: .branchtargets A, B;\nA: mov.u32 %r0, 1;\nbra C;\nB: mov.u32 %r0, 2;\nC:";
    assert_eq!(run(body, 1).1.unwrap()[0], 2);
    finds(body, 2, Code::LaunchFailed, "a jump past the end of its table");
}

#[test]
fn barriers_are_sixteen_and_count_in_warps() {
    assert!(run("mov.u32 %r0, 0;\nbar.sync %n;", 15).1.is_ok());
    finds("mov.u32 %r0, 0;\nbar.sync %n;", 16, Code::LaunchFailed, "barrier 16: there are 16");
    finds("mov.u32 %r0, 0;\nbar.sync 1, %n;", 40, Code::LaunchFailed, "must be a multiple of 32");
    finds("mov.u32 %r0, 0;\nbar.sync 1, %n;", 64, Code::LaunchFailed, "never opens: 32 of 64 threads came");
}

#[test]
fn copies_are_checked_when_they_start() {
    // Thread t copies four words from x + 4·t to tile + 16·t; the source has n bytes, the rest is zeros.
    let body = "mov.u32 %r1, tile;\nshl.b32 %r2, %t, 4;\nadd.u32 %r1, %r1, %r2;\nand.b32 %r2, %t, 7;\n\
        mul.wide.u32 %rd1, %r2, 16;\n\
        add.u64 %rd1, %x, %rd1;\ncp.async.ca.shared.global [%r1], [%rd1], 16, %n;\ncp.async.wait_all;\n\
        ld.shared.u32 %r0, [%r1+4];";
    assert_eq!(run(body, 16).1.unwrap()[3], 113);
    assert_eq!(run(body, 4).1.unwrap()[3], 0, "not read, hence zero");
    finds(body, 20, Code::LaunchFailed, "reads more than it writes");
    let past = body.replace("and.b32 %r2, %t, 7", "and.b32 %r2, %t, 15");
    assert_eq!(run(&past, 0).1.unwrap()[9], 0, "a copy of nothing reads nothing, wherever it points");
    finds(&past, 16, Code::IllegalAddress, "thread (8, 0, 0): read of 16 bytes");
    let odd = body.replace("cp.async.ca.shared.global [%r1]", "cp.async.ca.shared.global [%r1+4]");
    finds(&odd, 16, Code::MisalignedAddress, "cp.async to a misaligned address");
    // The last four bytes of the buffer, of a copy that would be sixteen long.
    let tail = body
        .replace("and.b32 %r2, %t, 7;\nmul.wide.u32 %rd1, %r2, 16;", "mov.u64 %rd1, 112;")
        .replace("%rd1], 16, %n", "%rd1], 16, 4");
    assert!(run(&tail, 0).1.is_ok());
}

#[test]
fn groups_of_copies_arrive_in_their_order() {
    let body = |pending: u32| {
        format!(
            "mov.u32 %r1, tile;\nshl.b32 %r2, %t, 2;\nadd.u32 %r1, %r1, %r2;\n\
             cp.async.ca.shared.global [%r1], [%from], 4;\ncp.async.commit_group;\n\
             cp.async.ca.shared.global [%r1+128], [%from], 4;\ncp.async.commit_group;\n\
             cp.async.wait_group {pending};\nld.shared.u32 %r0, [%r1+%ofs];"
        )
    };
    let (first, second) = (|p| body(p).replace("+%ofs", ""), |p| body(p).replace("%ofs", "128"));
    assert_eq!(run(&first(1), 0).1.unwrap()[5], 105);
    assert_eq!(run(&second(0), 0).1.unwrap()[5], 105);
    finds(&first(2), 0, Code::LaunchFailed, "a copy of warp 0 has not arrived");
    finds(&second(1), 0, Code::LaunchFailed, "a copy of warp 0 has not arrived");
}

#[test]
fn members_of_a_shuffle_must_be_named_rightly() {
    let body = "mov.u32 %r1, -1;\nshfl.sync.bfly.b32 %r0|%p0, %t, 1, 31, %n;";
    assert_eq!(run(body, -1).1.unwrap()[4], 5);
    finds(body, 0x7fff_ffff, Code::LaunchFailed, "a lane that is not among the members it names");
    finds(
        "add.u32 %r1, %t, %n;\nshfl.sync.idx.b32 %r0|%p0, %t, 0, 31, %r1;",
        -32,
        Code::LaunchFailed,
        "lanes name different members",
    );
}

#[test]
fn a_trap_is_a_failure() {
    finds("trap;", 0, Code::LaunchFailed, "trap");
}

#[test]
fn comparisons_know_nan() {
    // %f1 = NaN; each comparison sets one bit.
    let mut body = String::from("mov.u32 %r0, 0;\nmov.f32 %f1, 0f7FC00000;\nmov.f32 %f2, 0f3F800000;\n");
    let kinds = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
    for (i, kind) in kinds.iter().enumerate() {
        body += &format!("setp.{kind}.f32 %p1, %f1, %f2;\nselp.u32 %r1, {}, 0, %p1;\nor.b32 %r0, %r0, %r1;\n", 1 << i);
    }
    assert_eq!(run(&body, 0).1.unwrap()[0], 0b10_1111_1100_0000, "true are the unordered ones and nan");
    let ordered = body.replace("0f7FC00000", "0f40000000"); // 2 against 1
    assert_eq!(run(&ordered, 0).1.unwrap()[0], 0b01_1100_1011_0010);
}

#[test]
fn predicates_combine_and_pair() {
    let body = "setp.lt.u32 %p0, %t, 8;\nsetp.ge.and.u32 %p1|%p2, %t, 4, %p0;\nselp.u32 %r1, 1, 0, %p1;\n\
        selp.u32 %r2, 2, 0, %p2;\n\
        or.b32 %r0, %r1, %r2;\nsetp.eq.or.u32 %p3, %t, 20, !%p0;\n@%p3 add.u32 %r0, %r0, 100;\n\
        xor.pred %p3, %p3, %p0;\n@!%p3 trap;";
    let got = run(body, 0).1.unwrap();
    for (t, got) in got.into_iter().enumerate() {
        let (below, p1) = (t < 8, (4..8).contains(&t));
        assert_eq!(got, u32::from(p1) + 2 * u32::from(below && !p1) + if below { 0 } else { 100 }, "thread {t}");
    }
}

#[test]
fn inline_scopes_have_their_own_registers() {
    let body = "mov.u32 %r0, 1;\n{\n.reg .b32 %r0, tmp;\nmov.u32 %r0, 50;\nadd.u32 tmp, %r0, %t;\nmov.u32 %r1, tmp;\n\
        }\nadd.u32 %r0, %r0, %r1;";
    assert_eq!(run(body, 0).1.unwrap()[2], 53);
}

#[test]
fn flushing_saturation_and_directed_rounding() {
    // The smallest subnormal times one, with and without ftz; 1 + 2^-30 rounded up and down; 3 saturated.
    let body = "mov.f32 %f1, 0f00000001;\nmov.f32 %f2, 0f3F800000;\nmov.f32 %f3, 0f30800000;\n\
        mov.f32 %f4, 0f40400000;\nmov.u32 %r0, 0;\n\
        mul.rn.f32 %f5, %f1, %f2;\nmul.rn.ftz.f32 %f6, %f1, %f2;\nadd.rp.f32 %f7, %f2, %f3;\n\
        add.rz.f32 %f8, %f2, %f3;\nadd.sat.f32 %f9, %f4, %f4;\n\
        setp.gt.f32 %p0, %f5, 0f00000000;\n@%p0 or.b32 %r0, %r0, 1;\nsetp.eq.f32 %p0, %f6, 0f00000000;\n\
        @%p0 or.b32 %r0, %r0, 2;\n\
        setp.gt.f32 %p0, %f7, %f2;\n@%p0 or.b32 %r0, %r0, 4;\nsetp.eq.f32 %p0, %f8, %f2;\n@%p0 or.b32 %r0, %r0, 8;\n\
        setp.eq.f32 %p0, %f9, %f2;\n@%p0 or.b32 %r0, %r0, 16;\nsetp.eq.ftz.f32 %p0, %f1, 0f00000000;\n\
        @%p0 or.b32 %r0, %r0, 32;";
    assert_eq!(run(body, 0).1.unwrap()[0], 63);
}
