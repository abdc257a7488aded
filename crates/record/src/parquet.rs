//! Parquet files: only the part of the format that a [`Table`] needs.
//!
//! Source: the Apache Parquet format 2.11 (`parquet.thrift`, `Encodings.md`, `LogicalTypes.md`) and
//! Thrift's compact protocol (`thrift-compact-protocol.md`); comments name the section at each use.
//! Every column is optional and flat, so it has definition levels of one bit and no repetition
//! levels. A row group has one page of plain values per column (version 1); text columns have a
//! dictionary before that page. Integers in the file are little-endian.
//!
//! The reasons for not using a library are in ARCHITECTURE.md, "By hand, and why".
//!
//! Leaves out: compression, statistics, indexes, nesting, reading. Read [`write`] first.

use crate::table::{Column, ColumnValues, Kind, Table, TextColumn};
use std::io::{self, Write};

/// Maximum number of rows of a row group. A page of numbers is then 1 MiB, as the format
/// recommends.
pub const ROW_GROUP_ROWS: usize = 128 * 1024;

const MAGIC: &[u8] = b"PAR1";
/// Version of this writer. The program's version is in the description of the run.
const CREATED_BY: &str = "anabranch version 1";

// `parquet.thrift`: Type, ConvertedType, FieldRepetitionType, Encoding, CompressionCodec, PageType.
const TYPE_BOOLEAN: i64 = 0;
const TYPE_INT64: i64 = 2;
const TYPE_DOUBLE: i64 = 5;
const TYPE_BYTE_ARRAY: i64 = 6;
const CONVERTED_UTF8: i64 = 0;
const CONVERTED_UINT_64: i64 = 14;
const OPTIONAL: i64 = 1;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;
const UNCOMPRESSED: i64 = 0;
const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;

/// The bytes of a column in one row group of the file.
struct Chunk {
    values: usize,
    dictionary_at: Option<u64>,
    data_at: u64,
    bytes: u64,
}

impl Table {
    /// Writes the whole table as one Parquet file.
    ///
    /// Cost: linear. The encoded form of one row group of [`ROW_GROUP_ROWS`] is in memory, one
    /// column at a time.
    /// Errors: errors of `out` only.
    /// Source: the Apache Parquet format, version 2.11; `parquet.rs` lists the parts that are used.
    pub fn write_parquet(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        write(self, out)
    }
}

/// Writes `table` as one file.
fn write(table: &Table, out: &mut impl Write) -> io::Result<()> {
    out.write_all(MAGIC)?;
    let mut written = MAGIC.len() as u64;
    // Number of values of each column in earlier row groups.
    let mut passed = vec![0; table.columns.len()];
    let mut groups = Vec::new();
    for first in (0..table.rows()).step_by(ROW_GROUP_ROWS) {
        let rows = first..table.rows().min(first + ROW_GROUP_ROWS);
        let mut chunks = Vec::with_capacity(table.columns.len());
        for (column, passed) in table.columns.iter().zip(&mut passed) {
            let (bytes, dictionary_bytes) = chunk(column, rows.clone(), passed);
            out.write_all(&bytes)?;
            chunks.push(Chunk {
                values: rows.len(),
                dictionary_at: dictionary_bytes.map(|_| written),
                data_at: written + dictionary_bytes.unwrap_or(0),
                bytes: bytes.len() as u64,
            });
            written += bytes.len() as u64;
        }
        groups.push((rows.len(), chunks));
    }
    let footer = footer(table, &groups);
    out.write_all(&footer)?;
    let length =
        u32::try_from(footer.len()).expect("a footer of 4 GiB describes more rows than memory holds");
    out.write_all(&length.to_le_bytes())?;
    out.write_all(MAGIC)
}

/// Returns the pages of a column for these rows, and the length of its dictionary page; `None`
/// without a dictionary. Advances `passed` past the values of these rows.
fn chunk(column: &Column, rows: std::ops::Range<usize>, passed: &mut usize) -> (Vec<u8>, Option<u64>) {
    let present = &column.present[rows];
    let first = *passed;
    *passed += present.iter().filter(|p| **p).count();
    let values = first..*passed;

    // A version 1 page begins with the length of its levels and the levels (`Encodings.md`, RLE).
    let mut levels = Vec::new();
    let flags: Vec<u32> = present.iter().map(|p| u32::from(*p)).collect();
    write_hybrid(&mut levels, &flags, 1);
    let mut body = (levels.len() as u32).to_le_bytes().to_vec();
    body.append(&mut levels);

    let mut bytes = Vec::new();
    let mut dictionary_bytes = None;
    let mut encoding = PLAIN;
    match &column.values {
        ColumnValues::I64(all) => all[values].iter().for_each(|x| body.extend(x.to_le_bytes())),
        ColumnValues::U64(all) => all[values].iter().for_each(|x| body.extend(x.to_le_bytes())),
        ColumnValues::F64(all) => all[values].iter().for_each(|x| body.extend(x.to_le_bytes())),
        ColumnValues::Bool(all) => {
            let bits: Vec<u32> = all[values].iter().map(|x| u32::from(*x)).collect();
            pack(&mut body, &bits, 1);
        }
        ColumnValues::Text(texts) => {
            let (dictionary, indices) = dictionary(texts, values);
            let page = plain_texts(&dictionary);
            write_page(&mut bytes, DICTIONARY_PAGE, dictionary.len(), PLAIN, &page);
            dictionary_bytes = Some(bytes.len() as u64);
            // `Encodings.md`, Dictionary Encoding: one byte for the width, then the indices.
            let width = (u32::BITS - (dictionary.len().max(2) as u32 - 1).leading_zeros()) as u8;
            body.push(width);
            write_hybrid(&mut body, &indices, width);
            encoding = RLE_DICTIONARY;
        }
    }
    write_page(&mut bytes, DATA_PAGE, present.len(), encoding, &body);
    (bytes, dictionary_bytes)
}

/// The distinct texts of these values in order of occurrence, and for each value the index of its
/// text.
fn dictionary(texts: &TextColumn, values: std::ops::Range<usize>) -> (Vec<&str>, Vec<u32>) {
    let mut places = std::collections::BTreeMap::new();
    let mut distinct = Vec::new();
    let place = |id: &u32| {
        *places.entry(*id).or_insert_with(|| {
            distinct.push(texts.distinct[*id as usize].as_str());
            distinct.len() as u32 - 1
        })
    };
    let indices = texts.values[values].iter().map(place).collect();
    (distinct, indices)
}

/// Encodes texts (`Encodings.md`, Plain: BYTE_ARRAY).
fn plain_texts(texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Writes numbers of `width` bits consecutively, starting at the lowest bit of a byte. The last
/// byte is padded with zeros.
fn pack(out: &mut Vec<u8>, numbers: &[u32], width: u8) {
    let (mut bits, mut held) = (0u64, 0);
    for &number in numbers {
        bits |= u64::from(number) << held;
        held += width;
        while held >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out.push(bits as u8);
    }
}

/// Writes numbers of `width` bits: repeated numbers as runs, all others in groups of eight.
///
/// Source: `Encodings.md`, Run Length Encoding / Bit-Packing Hybrid.
fn write_hybrid(out: &mut Vec<u8>, numbers: &[u32], width: u8) {
    let run = |rest: &[u32]| {
        let length = rest.iter().take_while(|x| **x == rest[0]).count();
        (length >= 8 || length == rest.len()).then_some(length)
    };
    let mut rest = numbers;
    while !rest.is_empty() {
        if let Some(length) = run(rest) {
            write_varint(out, (length as u64) << 1);
            out.extend(&rest[0].to_le_bytes()[..usize::from(width).div_ceil(8)]);
            rest = &rest[length..];
        } else {
            let mut length = 0;
            while length < rest.len() && run(&rest[length..]).is_none() {
                length = rest.len().min(length + 8);
            }
            // Only the last group of a column can be incomplete; it is padded with zeros.
            let groups = length.div_ceil(8);
            write_varint(out, (groups as u64) << 1 | 1);
            let begin = out.len();
            pack(out, &rest[..length], width);
            out.resize(begin + groups * usize::from(width), 0);
            rest = &rest[length..];
        }
    }
}

/// Writes a page: `parquet.thrift`, PageHeader, then the body.
fn write_page(out: &mut Vec<u8>, page_type: i64, values: usize, encoding: i64, body: &[u8]) {
    let mut header = Thrift::default();
    header.i32(1, page_type);
    header.i32(2, body.len() as i64);
    header.i32(3, body.len() as i64);
    header.structure(if page_type == DATA_PAGE { 5 } else { 7 }, |header| {
        header.i32(1, values as i64);
        header.i32(2, encoding);
        if page_type == DATA_PAGE {
            header.i32(3, RLE);
            header.i32(4, RLE);
        }
    });
    out.extend(header.end());
    out.extend(body);
}

/// Encodes the footer (`parquet.thrift`: FileMetaData).
fn footer(table: &Table, groups: &[(usize, Vec<Chunk>)]) -> Vec<u8> {
    let mut file = Thrift::default();
    file.i32(1, 2);
    let root = std::iter::once(None);
    file.structures(2, root.chain(table.columns.iter().map(Some)), |schema, column| match column {
        None => {
            schema.text(4, "schema");
            schema.i32(5, table.columns.len() as i64);
        }
        Some(column) => describe(schema, column),
    });
    file.i64(3, table.rows() as u64);
    file.structures(4, groups.iter(), |group, (rows, chunks)| {
        group.structures(1, table.columns.iter().zip(chunks), |chunk, (column, at)| {
            chunk.i64(2, 0);
            chunk.structure(3, |meta| {
                let text = column.kind() == Kind::Text;
                meta.i32(1, physical(column.kind()));
                meta.i32s(2, if text { &[PLAIN, RLE, RLE_DICTIONARY] } else { &[PLAIN, RLE] });
                meta.texts(3, &[&column.name]);
                meta.i32(4, UNCOMPRESSED);
                meta.i64(5, at.values as u64);
                meta.i64(6, at.bytes);
                meta.i64(7, at.bytes);
                meta.i64(9, at.data_at);
                if let Some(dictionary_at) = at.dictionary_at {
                    meta.i64(11, dictionary_at);
                }
            });
        });
        group.i64(2, chunks.iter().map(|c| c.bytes).sum());
        group.i64(3, *rows as u64);
    });
    file.text(6, CREATED_BY);
    file.end()
}

const fn physical(kind: Kind) -> i64 {
    match kind {
        Kind::I64 | Kind::U64 => TYPE_INT64,
        Kind::F64 => TYPE_DOUBLE,
        Kind::Bool => TYPE_BOOLEAN,
        Kind::Text => TYPE_BYTE_ARRAY,
    }
}

/// Writes a column's entry: `parquet.thrift`, SchemaElement. The older annotation (ConvertedType)
/// is written in addition to the newer one (LogicalType), as `LogicalTypes.md` requires.
fn describe(schema: &mut Thrift, column: &Column) {
    schema.i32(1, physical(column.kind()));
    schema.i32(3, OPTIONAL);
    schema.text(4, &column.name);
    match column.kind() {
        Kind::U64 => {
            schema.i32(6, CONVERTED_UINT_64);
            schema.structure(10, |logical| {
                logical.structure(10, |integer| {
                    integer.i8(1, 64);
                    integer.bool(2, false);
                });
            });
        }
        Kind::Text => {
            schema.i32(6, CONVERTED_UTF8);
            schema.structure(10, |logical| logical.structure(1, |_| {}));
        }
        Kind::I64 | Kind::F64 | Kind::Bool => {}
    }
}

/// A structure in Thrift's compact protocol. Fields must be added in ascending order of their
/// numbers.
///
/// Source: `thrift-compact-protocol.md`, Struct encoding and List and set.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    field: u8,
}

impl Thrift {
    const BOOL_TRUE: u8 = 1;
    const BOOL_FALSE: u8 = 2;
    const I8: u8 = 3;
    const I32: u8 = 5;
    const I64: u8 = 6;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const STRUCT: u8 = 12;

    /// Writes a field's header. The short form always suffices, because consecutive field numbers
    /// differ by at most 15.
    fn begin(&mut self, field: u8, wire_type: u8) {
        self.bytes.push((field - self.field) << 4 | wire_type);
        self.field = field;
    }
    fn bool(&mut self, field: u8, value: bool) {
        self.begin(field, if value { Self::BOOL_TRUE } else { Self::BOOL_FALSE });
    }
    fn i8(&mut self, field: u8, value: u8) {
        self.begin(field, Self::I8);
        self.bytes.push(value);
    }
    fn i32(&mut self, field: u8, value: i64) {
        self.begin(field, Self::I32);
        write_varint(&mut self.bytes, zigzag(value));
    }
    fn i64(&mut self, field: u8, value: u64) {
        self.begin(field, Self::I64);
        write_varint(&mut self.bytes, zigzag(value as i64));
    }
    fn text(&mut self, field: u8, text: &str) {
        self.begin(field, Self::BINARY);
        write_text(&mut self.bytes, text);
    }
    fn list(&mut self, field: u8, wire_type: u8, length: usize) {
        self.begin(field, Self::LIST);
        match length {
            0..15 => self.bytes.push((length as u8) << 4 | wire_type),
            _ => {
                self.bytes.push(0xf0 | wire_type);
                write_varint(&mut self.bytes, length as u64);
            }
        }
    }
    fn i32s(&mut self, field: u8, values: &[i64]) {
        self.list(field, Self::I32, values.len());
        values.iter().for_each(|x| write_varint(&mut self.bytes, zigzag(*x)));
    }
    fn texts(&mut self, field: u8, texts: &[&str]) {
        self.list(field, Self::BINARY, texts.len());
        texts.iter().for_each(|x| write_text(&mut self.bytes, x));
    }
    fn structure(&mut self, field: u8, fill: impl FnOnce(&mut Self)) {
        self.begin(field, Self::STRUCT);
        self.inner(fill);
    }
    fn structures<T>(&mut self, field: u8, items: impl Iterator<Item = T>, fill: impl Fn(&mut Self, T)) {
        let items: Vec<T> = items.collect();
        self.list(field, Self::STRUCT, items.len());
        items.into_iter().for_each(|item| self.inner(|inner| fill(inner, item)));
    }
    fn inner(&mut self, fill: impl FnOnce(&mut Self)) {
        let outer = std::mem::take(&mut self.field);
        fill(self);
        self.bytes.push(0);
        self.field = outer;
    }
    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

const fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

/// Writes a number with seven bits per byte, lowest first. All bytes except the last have their
/// highest bit set (ULEB128).
fn write_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_varint(out, text.len() as u64);
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests;
