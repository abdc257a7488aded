//! The text form of quantities in files, which serde writes and reads.
//!
//! Leaves out: the format of the text, which `Display` and `FromStr` of a quantity define.

/// Implements serde exactly: writes a quantity as text, with the base unit if needed, and reads any
/// text that `FromStr` accepts. The schema is a text with an example.
macro_rules! serde_as_text {
    ($type:ident) => {
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "examples": [Self::EXAMPLE] })
            }
            fn inline_schema() -> bool {
                true
            }
        }
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                let pretty = self.to_string();
                // The short form rounds to three decimals; if it is not exact, the base unit is
                // used.
                if pretty.parse::<Self>().as_ref() == Ok(self) {
                    s.serialize_str(&pretty)
                } else {
                    s.serialize_str(&format!("{} {}", self.0, Self::BASE_UNIT))
                }
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(f, "a number and its unit in quotes, such as \"{}\"", <$type>::EXAMPLE)
                    }
                    fn visit_u64<E: serde::de::Error>(self, bare: u64) -> Result<$type, E> {
                        self.visit_str(&bare.to_string())
                    }
                    fn visit_i64<E: serde::de::Error>(self, bare: i64) -> Result<$type, E> {
                        match u64::try_from(bare) {
                            Ok(bare) => self.visit_u64(bare),
                            Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(bare), &self)),
                        }
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                // Accepts any type, so that a bare number is refused with a hint about the missing
                // unit.
                d.deserialize_any(Text)
            }
        }
    };
}
pub(crate) use serde_as_text;
