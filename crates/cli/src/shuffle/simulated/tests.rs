//! Figure 5 of the paper over simulated TCP, and what a scenario may say.
