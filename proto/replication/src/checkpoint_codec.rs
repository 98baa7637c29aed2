//! Wire format of checkpoints: a bit mask of the numbers that are not zero, and those numbers. Between two requests
//! most are zero.

use crate::{ClientCheckpoint, Phase, RecordPosition, ServerCheckpoint};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

/// `N` numbers, 16 at most.
struct Numbers<const N: usize>([u64; N]);

impl<const N: usize> Serialize for Numbers<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let there = (0..N).filter(|index| self.0[*index] != 0);
        let mut tuple = serializer.serialize_tuple(1 + there.clone().count())?;
        tuple.serialize_element(&there.clone().fold(0u16, |mask, index| mask | 1 << index))?;
        there.into_iter().try_for_each(|index| tuple.serialize_element(&self.0[index]))?;
        tuple.end()
    }
}

impl<'de, const N: usize> Deserialize<'de> for Numbers<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(1 + N, NumbersVisitor::<N>)
    }
}

struct NumbersVisitor<const N: usize>;

impl<'de, const N: usize> Visitor<'de> for NumbersVisitor<N> {
    type Value = Numbers<N>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "which of {N} numbers are not zero, and those")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Numbers<N>, A::Error> {
        let missing = || A::Error::custom("fewer numbers than announced");
        let mask: u16 = seq.next_element()?.ok_or_else(missing)?;
        if u32::from(mask) >> N != 0 {
            return Err(A::Error::custom("a number that is not there"));
        }
        let mut numbers = [0; N];
        for (index, number) in numbers.iter_mut().enumerate() {
            if mask & (1 << index) != 0 {
                *number = seq.next_element()?.ok_or_else(missing)?;
            }
        }
        Ok(Numbers(numbers))
    }
}

fn narrow<E: Error>(value: u64) -> Result<u32, E> {
    u32::try_from(value).map_err(|_| E::custom("a number too large"))
}

fn record<E: Error>(generation: u64, sequence: u64) -> Result<RecordPosition, E> {
    Ok(RecordPosition { generation: narrow(generation)?, sequence })
}

impl Serialize for ClientCheckpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = Numbers([
            self.input,
            self.rx.sequence,
            self.exchange.into(),
            self.leg.into(),
            self.output,
            self.tx.sequence,
            self.used.into(),
            self.rx.generation.into(),
            self.tx.generation.into(),
            self.answered_keys.into(),
            self.owed.into(),
            self.leg_ended.into(),
        ]);
        (numbers, &self.phase).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClientCheckpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (Numbers(numbers), phase): (Numbers<12>, Phase) = Deserialize::deserialize(deserializer)?;
        let [input, rx, exchange, leg, output, tx, used, rx_keys, tx_keys, answered, owed, ended] = numbers;
        Ok(ClientCheckpoint {
            input,
            rx: record(rx_keys, rx)?,
            used: narrow(used)?,
            exchange: narrow(exchange)?,
            phase,
            leg: narrow(leg)?,
            output,
            tx: record(tx_keys, tx)?,
            answered_keys: narrow(answered)?,
            leg_ended: ended != 0,
            owed: narrow(owed)?,
        })
    }
}

impl Serialize for ServerCheckpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = Numbers([
            self.output,
            self.tx.sequence,
            self.plain,
            self.plain.wrapping_sub(self.point_plain),
            self.exchange.into(),
            self.leg.into(),
            self.input,
            self.rx.sequence,
            self.tx.generation.into(),
            self.rx.generation.into(),
            self.answered_keys.into(),
        ]);
        (numbers, &self.phase).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ServerCheckpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (Numbers(numbers), phase): (Numbers<11>, Phase) = Deserialize::deserialize(deserializer)?;
        let [output, tx, plain, behind, exchange, leg, input, rx, tx_keys, rx_keys, answered] = numbers;
        Ok(ServerCheckpoint {
            output,
            tx: record(tx_keys, tx)?,
            plain,
            leg: narrow(leg)?,
            input,
            rx: record(rx_keys, rx)?,
            point_plain: plain.wrapping_sub(behind),
            exchange: narrow(exchange)?,
            phase,
            answered_keys: narrow(answered)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConnectionState, Entry};

    #[test]
    fn checkpoints_round_trip_in_few_bytes() {
        let rx = RecordPosition { generation: 1, sequence: 1 << 40 };
        let tx = RecordPosition { generation: 3, sequence: 7 };
        let phase = Phase::Body(vec![1, 2, 3]);
        let client = ClientCheckpoint {
            input: 1 << 50,
            rx,
            used: 5,
            exchange: 6,
            phase: phase.clone(),
            leg: 7,
            output: 8,
            tx,
            answered_keys: 9,
            leg_ended: true,
            owed: 10,
        };
        let server = ServerCheckpoint {
            output: 1 << 50,
            tx,
            plain: 20,
            leg: 3,
            input: 4,
            rx,
            point_plain: 15,
            exchange: 5,
            phase,
            answered_keys: 6,
        };
        let few = ServerCheckpoint { output: 9, point_plain: 3, plain: 3, ..ServerCheckpoint::default() };
        let entries = [
            Entry::Client(client),
            Entry::Client(ClientCheckpoint::default()),
            Entry::Server(server),
            Entry::Server(few.clone()),
        ];
        for entry in entries {
            assert_eq!(Entry::decode(&entry.encode().unwrap()).unwrap(), entry);
        }
        assert_eq!(Entry::Server(few).encode().unwrap().len(), 5, "kind, which, two numbers, phase");
        // One byte for each absent part.
        assert_eq!(ConnectionState::default().encode().unwrap(), [0; 21]);
    }

    #[test]
    fn missing_or_too_large_numbers_are_rejected() {
        let mut bytes = Entry::Client(ClientCheckpoint::default()).encode().unwrap();
        assert_eq!(bytes.len(), 3, "kind, which, phase");
        bytes[1] = 0x40; // a part of a record that is used
        bytes.insert(2, 1);
        assert!(Entry::decode(&bytes).is_ok());
        bytes.splice(2..3, [0xff, 0xff, 0xff, 0xff, 0x1f]);
        assert!(Entry::decode(&bytes).is_err(), "more than 32 bits");
        let beyond = [Entry::Client(ClientCheckpoint::default()).encode().unwrap()[0], 0x80, 0x20, 1, 0];
        assert!(Entry::decode(&beyond).is_err(), "the thirteenth of twelve");
    }
}
