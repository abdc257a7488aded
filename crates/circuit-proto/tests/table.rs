use anabranch_circuit_proto::*;
use anabranch_units::*;
#[test]
fn table() {
    let t = Timing::ETALON;
    for racks in [8usize, 16, 32, 64] {
        let per = ByteCount::new(16_000_000);
        let demands = [
            ("ring", generate::ring(racks, per).unwrap()),
            ("all", generate::all_to_all(racks, per).unwrap()),
            ("skew", generate::skewed(racks, per, 4, 12, Seed::new(1)).unwrap()),
            ("rand30", generate::random(racks, per, 300_000, Seed::new(1)).unwrap()),
            ("rand100", generate::random(racks, per, 1_000_000, Seed::new(1)).unwrap()),
        ];
        for (name, d) in &demands {
            let b0 = std::time::Instant::now();
            let bound = bound::served_max(d, &t).as_u64() as f64;
            let bt = b0.elapsed();
            let mut line = format!("{racks:4} {name:8} bound {:.3} ({:?})", bound / d.total().as_u64() as f64, bt);
            for k in Kind::ALL {
                let s0 = std::time::Instant::now();
                let s = k.scheduler().schedule(d, &t);
                let e = s0.elapsed();
                s.check(racks, &t).unwrap();
                line += &format!(" | {} {:.4} {} d {:?}", k.name(), s.served(d, &t).as_u64() as f64 / bound, s.days.len(), e);
            }
            println!("{line}");
        }
    }
}
