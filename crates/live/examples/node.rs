//! A standalone node, `node LISTEN PARENT...`, for comparisons with other caching proxies.
#![allow(clippy::disallowed_methods, reason = "a program")]

use anabranch_live::{Node, NodeConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: node LISTEN PARENT...")?.parse()?;
    let mut config = NodeConfig::new("node", address);
    config.relay.is_doubled = std::env::var_os("DOUBLED").is_some();
    if let Ok(name) = std::env::var("NAME") {
        config.name = name;
    }
    config.parents = arguments.collect();
    let threads = std::env::var("THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let node = Node::bind(config)?;
        println!("listening at {}", node.local_addr()?);
        match node.run().await {}
    })
}
