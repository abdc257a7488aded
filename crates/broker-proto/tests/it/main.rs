//! Brokers and networks' agents together, in virtual time.

mod replicas;
mod rounds;
mod store;
