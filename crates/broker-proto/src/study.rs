//! Studies of markets for which no deployed broker is needed: false bids, and several brokers at
//! once.

pub mod false_statements;
pub mod several;
