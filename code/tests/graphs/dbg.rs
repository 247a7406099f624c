use super::program::Program;
#[test]
#[ignore = "x"]
fn dbg() {
    let program = Program::open(std::path::Path::new("/usr/bin/python3.11")).unwrap();
    let r = program.ranges();
    for a in [0x428b42_u64, 0x50d1cc, 0x461b10, 0x5b868a, 0x43109a, 0x52e95f] {
        let n = r.partition_point(|x| x.start <= a) - 1;
        println!("{a:x} {n} {:x?} whole {} parts {:?}", r[n], program.survey.whole(n), program.survey.parts(n));
    }
}
