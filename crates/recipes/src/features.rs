//! The features by which systems of two control planes differ (§1.2.1).

/// A choice among words.
pub trait FeatureWord: Copy + PartialEq + 'static {
    /// All choices, in the order of tables.
    const ALL: &'static [Self];
    /// The word.
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
    /// Information that the control planes share by an interface. Measurements of the data plane do
    /// not count.
    Sharing {
        /// They share nothing.
        None = "none",
        /// They share a part of the information that the decisions need.
        Incomplete = "incomplete",
        /// They share all that the decisions need.
        Complete = "complete",
    }
    /// Devices of the data plane that both control planes decide for.
    Resources {
        /// Each has its own devices.
        Disjoint = "disjoint",
        /// They share some devices.
        Partial = "partial",
        /// They share all devices.
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
        /// Parts of one company.
        SoftAdministration = "administration (soft)",
        /// Companies.
        HardAdministration = "administration (hard)",
    }
    /// Precedence of the control planes: both are equal, or one has priority.
    Relation {
        /// Equal say.
        Peers = "peers",
        /// Priority of one.
        Priority = "one has priority",
    }
    /// Direction of the shared information.
    Flow {
        /// There is no interface.
        None = "none",
        /// One control plane informs the other.
        OneWay = "one-way",
        /// Each informs the other.
        TwoWay = "two-way",
        /// One-way in some networks, two-way in others.
        Either = "one- or two-way",
    }
    /// How one decision comes of two.
    Decision {
        /// Both decisions combined.
        Joint = "joint",
        /// A coarse decision, which the other control plane refines.
        Refinement = "refinement",
        /// One of both decisions.
        Choice = "choice",
        /// Always the same control plane's.
        OneSide = "one side's",
        /// Each for its own devices.
        Separate = "separate",
    }
    /// Harm of bad decisions.
    Harm {
        /// Rate, delay or quality.
        Performance = "performance",
        /// Time until a failure or a new client is answered.
        Responsiveness = "responsiveness",
        /// Cost, or profit that is lost.
        Cost = "cost",
        /// Correctness, such as networks that fall apart.
        Correctness = "correctness",
    }
}
