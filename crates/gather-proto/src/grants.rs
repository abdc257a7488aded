//! Max-min fair shares, with which a client divides its last hop.

/// Max-min fair shares of `capacity` among users with the given demands; `None` is an unlimited
/// demand.
///
/// Units: the capacity, demands and shares have the same unit; here it is a rate. The shares sum to
/// the capacity, or to the demands if their sum is lower.
/// Source: Bertsekas and Gallager, *Data Networks*, section 6.5.2, on one link.
pub fn share(capacity: f64, demands: &[Option<f64>]) -> Vec<f64> {
    let mut by_demand: Vec<usize> = (0..demands.len()).collect();
    let demand = |pull: usize| demands[pull].unwrap_or(f64::INFINITY);
    by_demand.sort_by(|a, b| demand(*a).total_cmp(&demand(*b)));
    let mut shares = vec![0.0; demands.len()];
    let mut left = capacity;
    for (done, pull) in by_demand.into_iter().enumerate() {
        shares[pull] = demand(pull).min(left / (demands.len() - done) as f64);
        left -= shares[pull];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unused_share_is_divided_among_other_pulls() {
        assert_eq!(share(10.0, &[None, None]), [5.0, 5.0]);
        assert_eq!(share(10.0, &[None, Some(2.0), None]), [4.0, 2.0, 4.0]);
        assert_eq!(share(10.0, &[Some(1.0), Some(2.0)]), [1.0, 2.0]);
        assert_eq!(share(10.0, &[]), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn largest_share_is_given_to_every_unsatisfied_pull(capacity in 0.0f64..1e9, demands in proptest::collection::vec(proptest::option::of(0.0f64..1e9), 1..20)) {
            let shares = share(capacity, &demands);
            let sum: f64 = shares.iter().sum();
            prop_assert!(sum <= capacity * (1.0 + 1e-9));
            let most = shares.iter().fold(0.0f64, |a, b| a.max(*b));
            for (share, demand) in shares.iter().zip(&demands) {
                let wants_more = demand.is_none_or(|demand| demand > share * (1.0 + 1e-9));
                prop_assert!(!wants_more || *share >= most * (1.0 - 1e-9), "{:?}", shares);
                prop_assert!(demand.is_none_or(|demand| *share <= demand));
            }
        }
    }
}
