use anabranch_circuit_proto::*;
use anabranch_units::*;
#[test]
fn versus() {
    let t = Timing::ETALON;
    let mut r = Seed::new(9).stream("cases", 0);
    let (mut worse, mut n, mut sum, mut worst, mut below1) = (0, 0, 0.0, 1.0f64, 0);
    let mut hist: Vec<String> = vec![];
    for case in 0..400u64 {
        let racks = [8usize, 16, 24, 32][r.below(4) as usize];
        let per =
            ByteCount::new([2_000_000, 8_000_000, 16_000_000, 20_000_000, 60_000_000][r.below(5) as usize]);
        let d = if case % 2 == 0 {
            generate::random(racks, per, 100_000 + r.below(900_000) as u32, Seed::new(case)).unwrap()
        } else {
            generate::skewed(racks, per, 1 + r.below(5) as usize, 1 + r.below(14) as usize, Seed::new(case))
                .unwrap()
        };
        let e = Kind::Eclipse.scheduler().schedule(&d, &t);
        let f = Kind::Refit.scheduler().schedule(&d, &t);
        f.check(racks, &t).unwrap();
        let (a, b) = (e.served(&d, &t).as_u64() as f64, f.served(&d, &t).as_u64() as f64);
        let q = b / a.max(1.0);
        n += 1;
        sum += q;
        if q < 0.9999 {
            worse += 1;
        }
        if q < 0.99 {
            below1 += 1;
            hist.push(format!(
                "case {case} racks {racks} {per} q {q:.4} days {} {}",
                e.days.len(),
                f.days.len()
            ));
        }
        worst = worst.min(q);
    }
    println!("n {n} mean {:.5} worse {worse} below1% {below1} worst {worst:.4}", sum / n as f64);
    for h in hist.iter().take(25) {
        println!("{h}");
    }
}
