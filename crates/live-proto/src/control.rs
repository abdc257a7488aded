//! Control of a relay: the decisions of the controller, merged with local state.
