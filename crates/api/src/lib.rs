//! HTTP services: the controller and its client.
