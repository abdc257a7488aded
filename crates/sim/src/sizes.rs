//! Flow sizes: distributions from files, and two built-in published distributions.
//!
//! A file has a header `size_bytes,cdf` and one row per point of the cumulative distribution. Both
//! columns ascend, and the last share is 1. Sizes are interpolated linearly between points. The
//! built-in distributions are `web-search` (DCTCP, SIGCOMM 2010, Figure 4) and `data-mining` (VL2,
//! SIGCOMM 2009, Figure 2), both in the packets of 1,460 bytes of PIAS's simulations (NSDI 2015).
//! Read [`Sizes`] first.

use anabranch_units::{ByteCount, RandomStream};

/// Names and files of the built-in distributions.
const CARRIED: [(&str, &str); 2] = [
    ("web-search", include_str!("data/web_search.csv")),
    ("data-mining", include_str!("data/data_mining.csv")),
];

/// A cumulative distribution of flow sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Points: size in bytes, and share of flows that are no larger.
    points: Vec<(f64, f64)>,
}

/// Reason why a file is not a valid distribution.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SizesError {
    /// The first line is not the header.
    Header(String),
    /// A line does not hold two numbers in range.
    Row {
        /// Line number, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// A line's size or share is below the previous line's.
    Order {
        /// Line number, from 1.
        line: usize,
    },
    /// The last share is not 1, or there is no row.
    End,
}

impl std::fmt::Display for SizesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(found) => write!(f, "line 1: `{found}`: must be the header size_bytes,cdf"),
            Self::Row { line, text } => {
                write!(
                    f,
                    "line {line}: `{text}`: must be a size of 1 to 10^15 bytes, a comma, and a share of 0 to 1"
                )
            }
            Self::Order { line } => write!(f, "line {line}: sizes and shares must not fall from row to row"),
            Self::End => write!(f, "the last row's share must be 1"),
        }
    }
}
impl std::error::Error for SizesError {}

impl Sizes {
    /// Creates the distribution of a single size.
    pub fn fixed(size: ByteCount) -> Self {
        Self { points: vec![(size.as_u64() as f64, 1.0)] }
    }

    /// Creates the uniform distribution of sizes from `least` to `most`.
    ///
    /// Panics: if `least` is larger than `most`.
    pub fn uniform(least: ByteCount, most: ByteCount) -> Self {
        assert!(least <= most, "{least} to {most} bytes: the first is the smaller one");
        Self { points: vec![(least.as_u64() as f64, 0.0), (most.as_u64() as f64, 1.0)] }
    }

    /// Returns the built-in distribution `name`; `None` if there is none.
    pub fn carried(name: &str) -> Option<Self> {
        let (_, text) = CARRIED.iter().find(|(n, _)| *n == name)?;
        Some(Self::parse(text).expect("the carried files are checked by a test"))
    }

    /// Parses a file's text.
    ///
    /// Errors: see [`SizesError`].
    pub fn parse(text: &str) -> Result<Self, SizesError> {
        let mut lines = text.lines().enumerate();
        let header = lines.next().map_or("", |(_, line)| line.trim());
        if header != "size_bytes,cdf" {
            return Err(SizesError::Header(header.to_owned()));
        }
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (index, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let numbers = text.split_once(',').and_then(|(size, share)| {
                Some((size.trim().parse::<f64>().ok()?, share.trim().parse::<f64>().ok()?))
            });
            let line = index + 1;
            let Some((size, share)) =
                numbers.filter(|(size, share)| (1.0..=1e15).contains(size) && (0.0..=1.0).contains(share))
            else {
                return Err(SizesError::Row { line, text: text.to_owned() });
            };
            if points.last().is_some_and(|(s, c)| size < *s || share < *c) {
                return Err(SizesError::Order { line });
            }
            points.push((size, share));
        }
        match points.last() {
            Some((_, share)) if *share == 1.0 => Ok(Self { points }),
            _ => Err(SizesError::End),
        }
    }

    /// Mean size in bytes.
    pub fn mean_bytes(&self) -> f64 {
        let (first_size, first_share) = self.points[0];
        let between = self.points.windows(2).map(|w| (w[1].1 - w[0].1) * (w[0].0 + w[1].0) / 2.0);
        first_size * first_share + between.sum::<f64>()
    }

    /// Draws a random size in whole bytes, at least 1.
    pub fn draw(&self, random: &mut RandomStream) -> ByteCount {
        let u = random.unit_f64();
        let next = self.points.partition_point(|(_, share)| *share <= u).min(self.points.len() - 1);
        let (size, share) = self.points[next];
        let bytes = match next.checked_sub(1).map(|before| self.points[before]) {
            Some((size_before, share_before)) if share > share_before => {
                size_before + (size - size_before) * (u - share_before) / (share - share_before)
            }
            _ => size,
        };
        ByteCount::new((bytes.round() as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    #[test]
    fn draws_match_the_built_in_distributions() {
        for (name, _) in CARRIED {
            let sizes = Sizes::carried(name).expect("carried");
            let mut random = Seed::new(1).stream("sizes", 0);
            let draws: Vec<f64> = (0..400_000).map(|_| sizes.draw(&mut random).as_u64() as f64).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            // The distributions have heavy tails, so the mean of the draws still varies by one or
            // two percent.
            assert!((mean / sizes.mean_bytes() - 1.0).abs() < 0.05, "{name}: {mean} {}", sizes.mean_bytes());
            for (size, share) in &sizes.points {
                let below = draws.iter().filter(|d| *d <= size).count() as f64 / draws.len() as f64;
                // At a jump of the distribution, the upper end counts.
                assert!(below >= share - 0.01, "{name}: {size}: {below} {share}");
            }
        }
    }

    #[test]
    fn invalid_distributions_are_refused_with_their_line() {
        let message = |text: &str| Sizes::parse(text).expect_err("no distribution").to_string();
        assert!(message("bytes,cdf\n").contains("must be the header"));
        assert!(message("size_bytes,cdf\n10,0\nx,1\n").contains("line 3"));
        assert!(message("size_bytes,cdf\n10,0.5\n9,1\n").contains("line 3"));
        assert!(message("size_bytes,cdf\n10,0.5\n").contains("must be 1"));
        assert!(message("size_bytes,cdf\n").contains("must be 1"));
        assert!(Sizes::parse("size_bytes,cdf\n10,1\n").is_ok());
    }

    #[test]
    fn uniform_sizes_fill_their_range() {
        let sizes = Sizes::uniform(ByteCount::new(100), ByteCount::new(200));
        assert_eq!(sizes.mean_bytes(), 150.0);
        let mut random = Seed::new(1).stream("sizes", 0);
        let mut below = [0; 4];
        for _ in 0..40_000 {
            let size = sizes.draw(&mut random).as_u64();
            assert!((100..=200).contains(&size));
            below[(size as usize - 100).min(99) / 25] += 1;
        }
        assert!(below.iter().all(|quarter| (9_500..10_500).contains(quarter)), "{below:?}");
    }

    #[test]
    fn fixed_size_is_always_drawn() {
        let sizes = Sizes::fixed(ByteCount::new(777));
        let mut random = Seed::new(1).stream("sizes", 0);
        assert!((0..100).all(|_| sizes.draw(&mut random) == ByteCount::new(777)));
        assert_eq!(sizes.mean_bytes(), 777.0);
    }
}
