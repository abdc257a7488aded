//! The client subnet option of a DNS query.
//!
//! Source: RFC 7871, section 6 (format), sections 7.1.2 and 7.2.1 (use). Leaves out: all other
//! parts of a DNS message. Read [`ClientSubnet`].

use super::prefixes::{AddressPrefix, width};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Code of the option (RFC 7871, section 6).
pub const CLIENT_SUBNET_CODE: u16 = 8;

/// The client subnet option of a query.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ClientSubnet {
    /// Source prefix. `None` for family 0, which some clients send with a source prefix length of
    /// 0.
    prefix: Option<AddressPrefix>,
}

/// A fault of the option. The query is answered with FORMERR.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubnetError {
    /// The option is shorter than the four bytes that precede the address.
    TooShort(usize),
    /// The family is neither IPv4 (1) nor IPv6 (2).
    BadFamily(u16),
    /// The source prefix is longer than the family's addresses.
    BadSource(u8),
    /// The scope prefix of a query is not 0.
    ScopeInQuestion(u8),
    /// The address has more or fewer bytes than the source prefix needs.
    BadLength {
        /// Length of the source prefix.
        source: u8,
        /// Number of address bytes.
        bytes: usize,
    },
    /// The address has bits set beyond the source prefix of this length.
    BitsBeyondSource(u8),
}

impl fmt::Display for SubnetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(bytes) => write!(f, "client subnet of {bytes} bytes: at least 4 are needed"),
            Self::BadFamily(family) => {
                write!(f, "client subnet of family {family}: must be 1 (IPv4) or 2 (IPv6)")
            }
            Self::BadSource(source) => {
                write!(f, "client subnet with source prefix {source}: longer than an address of its family")
            }
            Self::ScopeInQuestion(scope) => {
                write!(f, "client subnet with scope prefix {scope}: must be 0 in a question")
            }
            Self::BadLength { source, bytes } => {
                write!(f, "client subnet with source prefix {source} and {bytes} bytes of address")
            }
            Self::BitsBeyondSource(source) => {
                write!(f, "client subnet with source prefix {source}: bits beyond it must be 0")
            }
        }
    }
}

impl std::error::Error for SubnetError {}

impl ClientSubnet {
    /// Reads the option's data.
    ///
    /// Errors: the first fault; see [`SubnetError`].
    pub fn read(data: &[u8]) -> Result<Self, SubnetError> {
        let [family_high, family_low, source, scope, octets @ ..] = data else {
            return Err(SubnetError::TooShort(data.len()));
        };
        let (source, scope) = (*source, *scope);
        if scope != 0 {
            return Err(SubnetError::ScopeInQuestion(scope));
        }
        let family = u16::from_be_bytes([*family_high, *family_low]);
        let width = match family {
            0 if source == 0 && octets.is_empty() => return Ok(Self { prefix: None }),
            1 => 32,
            2 => 128,
            _ => return Err(SubnetError::BadFamily(family)),
        };
        if source > width {
            return Err(SubnetError::BadSource(source));
        }
        if octets.len() != usize::from(source.div_ceil(8)) {
            return Err(SubnetError::BadLength { source, bytes: octets.len() });
        }
        let mut padded = [0; 16];
        padded[..octets.len()].copy_from_slice(octets);
        let [a, b, c, d, ..] = padded;
        let address: IpAddr =
            if width == 32 { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(padded).into() };
        let prefix = AddressPrefix::around(address, source);
        let prefix = prefix.filter(|prefix| prefix.address() == address);
        Ok(Self { prefix: Some(prefix.ok_or(SubnetError::BitsBeyondSource(source))?) })
    }

    /// Address for which to answer. `None` if the source prefix has length 0, by which the client
    /// hides its address.
    pub fn viewer(self) -> Option<IpAddr> {
        self.prefix.filter(|prefix| prefix.length() > 0).map(AddressPrefix::address)
    }

    /// Data of the option in an answer that holds for all addresses in the prefix of length
    /// `scope`. A scope longer than the source prefix indicates that the source prefix was too
    /// short (RFC 7871, section 7.2.1).
    pub fn answer(self, scope: u8) -> Vec<u8> {
        let Some(prefix) = self.prefix else { return vec![0; 4] };
        let address = prefix.address();
        let (family, octets) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (2, address.octets().to_vec()),
        };
        let scope = if prefix.length() == 0 { 0 } else { scope.min(width(address)) };
        let octets = octets.into_iter().take(prefix.length().div_ceil(8).into());
        [0, family, prefix.length(), scope].into_iter().chain(octets).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_fault_has_its_own_error() {
        let cases: [(&[u8], SubnetError); 8] = [
            (&[0, 1, 24], SubnetError::TooShort(3)),
            (&[0, 3, 24, 0, 192, 0, 2], SubnetError::BadFamily(3)),
            (&[0, 0, 24, 0, 192, 0, 2], SubnetError::BadFamily(0)),
            (&[0, 1, 33, 0, 192, 0, 2, 0, 0], SubnetError::BadSource(33)),
            (&[0, 1, 24, 24, 192, 0, 2], SubnetError::ScopeInQuestion(24)),
            (&[0, 1, 24, 0, 192, 0, 2, 0], SubnetError::BadLength { source: 24, bytes: 4 }),
            (&[0, 1, 24, 0, 192, 0], SubnetError::BadLength { source: 24, bytes: 2 }),
            (&[0, 1, 23, 0, 192, 0, 3], SubnetError::BitsBeyondSource(23)),
        ];
        for (data, error) in cases {
            assert_eq!(ClientSubnet::read(data), Err(error));
        }
    }

    #[test]
    fn source_prefix_of_length_zero_hides_the_client() {
        for data in [[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0]] {
            let subnet = ClientSubnet::read(&data).expect("it has no fault");
            assert_eq!((subnet.viewer(), subnet.answer(24)), (None, data.to_vec()));
        }
    }

    proptest! {
        #[test]
        fn answers_repeat_the_query_subnet_with_a_scope(is_ipv4: bool, bits: u128, length in 0u8..=128, scope in 1u8..=32) {
            let length = if is_ipv4 { length % 33 } else { length };
            let address = if is_ipv4 { Ipv4Addr::from_bits(bits as u32).into() } else { Ipv6Addr::from_bits(bits).into() };
            let prefix = AddressPrefix::around(address, length).expect("a length in range");
            let mut data = ClientSubnet { prefix: Some(prefix) }.answer(scope);
            prop_assert_eq!(data[3], if length == 0 { 0 } else { scope });
            data[3] = 0;
            prop_assert_eq!(ClientSubnet::read(&data), Ok(ClientSubnet { prefix: Some(prefix) }));
        }
    }
}
