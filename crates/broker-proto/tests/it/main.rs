//! Brokers and networks' agents together, in virtual time.

mod rounds;
