//! `anabranch replicate`: joins the system to sockets, files and the controller's service.

pub mod partial;
pub mod runner;
pub mod service;
