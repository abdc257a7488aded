//! Studies of a market that no deployed broker needs: false bids, and several brokers at once.

pub mod false_statements;
pub mod several;
