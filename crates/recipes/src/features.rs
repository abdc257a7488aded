//! The features by which systems of two control planes differ (§1.2.1).

/// A feature whose values are words.
pub trait FeatureWord: Copy + PartialEq + 'static {
    /// All values, in the order of tables.
    const ALL: &'static [Self];
    /// The value's word.
    fn name(self) -> &'static str;
}

macro_rules! words {
    ($($(#[$about:meta])* $kind:ident { $($(#[$choice:meta])* $variant:ident = $name:literal,)+ })+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum $kind {
                $($(#[$choice])* $variant,)+
            }

            impl FeatureWord for $kind {
                const ALL: &'static [Self] = &[$(Self::$variant),+];
                fn name(self) -> &'static str {
                    match self { $(Self::$variant => $name,)+ }
                }
            }
        )+
    };
}
pub(crate) use words;

words! {
    /// Information that the control planes share through an interface. Measurements of the data
    /// plane do not count.
    Sharing {
        /// The control planes share nothing.
        None = "none",
        /// The control planes share a part of the information that their decisions need.
        Incomplete = "incomplete",
        /// The control planes share all information that their decisions need.
        Complete = "complete",
    }
    /// Devices of the data plane for which both control planes decide.
    Resources {
        /// Each control plane has its own devices.
        Disjoint = "disjoint",
        /// The control planes share some devices.
        Partial = "partial",
        /// The control planes share all devices.
        Full = "full",
    }
    /// Boundary between the control planes.
    Separation {
        /// Layers of one stack.
        Layering = "layering",
        /// Coarse decisions and fine ones.
        Granularity = "granularity",
        /// Slow decisions and fast ones.
        Timescale = "timescale",
        /// Different parts of one company.
        SoftAdministration = "administration (soft)",
        /// Different companies.
        HardAdministration = "administration (hard)",
    }
    /// Precedence of the control planes.
    Relation {
        /// Both control planes are equal.
        Peers = "peers",
        /// One control plane has priority.
        Priority = "one has priority",
    }
    /// Direction of the shared information.
    Flow {
        /// There is no interface.
        None = "none",
        /// One control plane informs the other.
        OneWay = "one-way",
        /// Each control plane informs the other.
        TwoWay = "two-way",
        /// One-way in some networks, two-way in others.
        Either = "one- or two-way",
    }
    /// How the decisions of two control planes become one decision.
    Decision {
        /// Both decisions are combined.
        Joint = "joint",
        /// One control plane decides coarsely, and the other refines the decision.
        Refinement = "refinement",
        /// One of the two decisions is chosen.
        Choice = "choice",
        /// The decision of the same control plane always counts.
        OneSide = "one side's",
        /// Each control plane decides for its own devices.
        Separate = "separate",
    }
    /// Harm of bad decisions.
    Harm {
        /// Rate, delay or quality.
        Performance = "performance",
        /// Time until the system responds to a failure or a new client.
        Responsiveness = "responsiveness",
        /// Higher cost, or lost profit.
        Cost = "cost",
        /// Correctness, for instance of a network that must stay connected.
        Correctness = "correctness",
    }
}
