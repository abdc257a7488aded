//! A relay of the data plane: one upstream request for each object.
