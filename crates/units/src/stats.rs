//! Means, percentiles and confidence intervals of small samples.
//!
//! Source: Student's t for the confidence interval of a mean, as in Law, *Simulation Modeling and
//! Analysis*, section 4.5. Results are `f64`, because they are only for reports.

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; for more, the normal
/// distribution's quantile is used.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const NORMAL_95: f64 = 1.960;

/// A mean and half the width of its 95 % confidence interval.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval around `mean`; `None` for fewer than two values.
    pub half_width: Option<f64>,
}

/// The mean of `values`; `None` without values.
pub fn mean(values: &[f64]) -> Option<Mean> {
    if values.is_empty() {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let half_width = (values.len() > 1).then(|| {
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        T_95.get(values.len() - 2).copied().unwrap_or(NORMAL_95) * (variance / n).sqrt()
    });
    Some(Mean { mean, half_width })
}

/// The value below which the share `q` (0 to 1) of the sorted values lies, by the nearest rank;
/// `None` without values.
pub fn percentile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Jain's fairness index: 1 if all values are equal, 1/n if only one of n is not zero. `None`
/// without values, or if all are zero.
///
/// Source: Jain, Chiu and Hawe, DEC-TR-301 (1984).
pub fn fairness(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_interval_uses_students_t() {
        // 1..5: mean 3, variance 2.5, t(4) = 2.776.
        let m = mean(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("five values");
        assert_eq!(m.mean, 3.0);
        assert!((m.half_width.expect("five values") - 2.776 * (2.5f64 / 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean(&[7.0]), Some(Mean { mean: 7.0, half_width: None }));
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn percentile_is_a_value_of_the_sample() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.5), Some(50.0));
        assert_eq!(percentile(&sorted, 0.99), Some(99.0));
        assert_eq!(percentile(&sorted, 1.0), Some(100.0));
        assert_eq!(percentile(&sorted, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn fairness_is_between_one_over_n_and_one() {
        assert_eq!(fairness(&[2.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(fairness(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(fairness(&[0.0]), None);
    }
}
