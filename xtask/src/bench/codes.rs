//! `cargo xtask bench codes`: the GF(2^8) kernels, ISA-L's and `reed-solomon-simd`'s; fixed-rate
//! codes of packets (`fec`); then LT codes and `raptorq`'s.
//!
//! A cell is a job (`gf_dot`: k inputs to m outputs, no coefficient 0 or 1; `xor`: k inputs to
//! one), a size, and a library. Ours and ISA-L's use the same field, so their outputs are compared
//! byte by byte before the clock starts. `reed-solomon-simd` works in GF(2^16), so only its
//! throughput compares: encoding k shards into m. ISA-L's tables are made before the clock starts,
//! as its users do; ours are part of each call. Read [`Cell`] first.

mod fec;
mod lt;

use super::best_seconds;
use anabranch_codes::{Kernel, kernel_in_use};
use anyhow::{Context, bail, ensure};
use libloading::{Library, Symbol};
use serde::Serialize;
use std::ffi::{c_int, c_uchar, c_void};
use std::hint::black_box;

const SIZES_BYTES: [usize; 5] = [1500, 9000, 9216, 65_536, 1 << 20];
const INPUTS: [usize; 4] = [2, 3, 4, 8];
const OUTPUTS: [usize; 3] = [1, 2, 4];
const ISA_L: &str = "libisal.so.2";
/// Maximum numbers of inputs and outputs with which ISA-L is called.
const ISA_L_INPUTS: usize = 40;
const ISA_L_OUTPUTS: usize = 10;

/// Arguments of `bench codes`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure ISA-L (if libisal.so.2 is installed), reed-solomon-simd (GF(2^16): only throughput
    /// compares) and raptorq too.
    #[arg(long)]
    peers: bool,
    /// Print one JSON object for each cell instead of a table.
    #[arg(long)]
    json: bool,
    /// Fail if a cell is slower than ISA-L's. With GFNI, sums of two inputs at 9,000 bytes must
    /// reach 1.6 times the speed of ISA-L 2.32 (which also uses GFNI), or 3.4 times the speed of a
    /// version before 2.31. Parities of fixed-rate codes must reach 1.2 times the speed of ISA-L,
    /// and the recovery of losses half of this speed. LT codes must meet their targets beside
    /// raptorq. Needs --peers.
    #[arg(long, requires = "peers")]
    check: bool,
    /// Measure this part alone.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// CPU seconds for each contender in each cell.
    #[arg(long, value_name = "S", default_value_t = 0.05, value_parser = parse_seconds)]
    seconds_per_cell: f64,
    /// Run this kernel instead of the machine's fastest kernel. LT codes always run the fastest
    /// one.
    #[arg(long, value_parser = parse_kernel)]
    kernel: Option<Kernel>,
}

/// Part of the codes that is measured.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Sums of products.
    Kernels,
    /// Fixed-rate codes of packets.
    Fec,
    /// LT codes, and the MDS code beside them.
    Lt,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if seconds > 0.0 && seconds <= 60.0 {
        Ok(seconds)
    } else {
        Err(format!("{seconds} s: must be above 0 and at most 60"))
    }
}

fn parse_kernel(text: &str) -> Result<Kernel, String> {
    let available = Kernel::available();
    available.iter().copied().find(|kernel| kernel.name() == text).ok_or_else(|| {
        let names: Vec<&str> = available.iter().map(|kernel| kernel.name()).collect();
        format!("`{text}`: this machine has {}", names.join(", "))
    })
}

/// Result of one measurement.
#[derive(Serialize)]
struct Cell {
    job: &'static str,
    k: usize,
    outputs: usize,
    size_bytes: usize,
    /// 10^9 input bytes per CPU second.
    gbytes_per_s: f64,
    /// Our kernel; null for a peer.
    kernel: Option<&'static str>,
    /// Name of the peer; null for our code.
    peer: Option<&'static str>,
}

/// Inputs and outputs in one pool. Each begins at a multiple of 64 bytes, and no two are whole
/// pages apart.
struct Buffers {
    pool: Vec<u8>,
    origin: usize,
    stride: usize,
    size: usize,
    inputs: usize,
}

impl Buffers {
    fn new(size: usize, inputs: usize, outputs: usize) -> Self {
        let stride = size.next_multiple_of(4096) + 4096 + 320;
        let mut pool = vec![0u8; stride * (inputs + outputs) + 64];
        let mut state = 88_172_645_463_325_252u64;
        for byte in &mut pool {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        let origin = pool.as_ptr().align_offset(64);
        Self { pool, origin, stride, size, inputs }
    }
    fn split(&mut self) -> (Vec<&[u8]>, Vec<&mut [u8]>) {
        let mut parts: Vec<&mut [u8]> = self.pool[self.origin..].chunks_exact_mut(self.stride).collect();
        let outputs = parts.split_off(self.inputs);
        let size = self.size;
        (
            parts.into_iter().map(|part| &part[..size]).collect(),
            outputs.into_iter().map(|part| &mut part[..size]).collect(),
        )
    }
}

/// Coefficients other than 0 and 1, different enough for a fair load.
fn coefficients(inputs: usize, outputs: usize) -> Vec<Vec<u8>> {
    let cell = |o: usize, i: usize| ((o * 31 + i * 37 + 3) % 254 + 2) as u8;
    (0..outputs).map(|o| (0..inputs).map(|i| cell(o, i)).collect()).collect()
}

/// Computes outputs from inputs, as sums of products with coefficients that are already chosen.
type Encoder<'a> = Box<dyn Fn(&[&[u8]], &mut [&mut [u8]]) + 'a>;

/// Recovers blocks from the coefficients of equally many packets, and from these packets.
type Decoder<'a> = Box<dyn Fn(&[u8], &[&[u8]], &mut [&mut [u8]]) -> anyhow::Result<()> + 'a>;

/// Intel's library ISA-L, loaded at run time.
struct IsaL(Library);

impl IsaL {
    fn load() -> Option<Self> {
        // SAFETY: loading runs the library's initialisers, which in ISA-L's case do nothing.
        unsafe { Library::new(ISA_L) }.ok().map(Self)
    }
    /// Returns ISA-L's function for sums of products with these coefficients.
    fn encoder(&self, rows: &[Vec<u8>], size: usize) -> anyhow::Result<Encoder<'_>> {
        type Init = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
        type Encode = unsafe extern "C" fn(
            c_int,
            c_int,
            c_int,
            *const c_uchar,
            *const *const c_uchar,
            *mut *mut c_uchar,
        );
        let (k, m) = (rows[0].len(), rows.len());
        let flat = rows.concat();
        let mut tables = vec![0u8; 32 * k * m];
        // SAFETY: the types match isa-l/erasure_code.h; the tables take 32 bytes for each
        // coefficient.
        let encode: Symbol<'_, Encode> = unsafe {
            let init: Symbol<'_, Init> = self.0.get(b"ec_init_tables")?;
            init(c_int::try_from(k)?, c_int::try_from(m)?, flat.as_ptr(), tables.as_mut_ptr());
            self.0.get(b"ec_encode_data")?
        };
        let (k_c, m_c, size_c) = (c_int::try_from(k)?, c_int::try_from(m)?, c_int::try_from(size)?);
        Ok(Box::new(move |inputs: &[&[u8]], outputs: &mut [&mut [u8]]| {
            assert!(inputs.len() == k && outputs.len() == m && k <= ISA_L_INPUTS && m <= ISA_L_OUTPUTS);
            assert!(inputs.iter().all(|input| input.len() == size));
            assert!(outputs.iter().all(|output| output.len() == size));
            let mut from = [std::ptr::null(); ISA_L_INPUTS];
            let mut to = [std::ptr::null_mut(); ISA_L_OUTPUTS];
            from.iter_mut().zip(inputs).for_each(|(pointer, input)| *pointer = input.as_ptr());
            to.iter_mut().zip(outputs).for_each(|(pointer, output)| *pointer = output.as_mut_ptr());
            // SAFETY: k inputs and m outputs of `size` bytes, as asserted; the tables were made for
            // k and m.
            unsafe { encode(size_c, k_c, m_c, tables.as_ptr(), from.as_ptr(), to.as_mut_ptr()) };
        }))
    }
    /// Returns a function that recovers the first `m` of `k` lost blocks with ISA-L, from the
    /// coefficients of the packets that are present: k rows of k.
    fn decoder(&self, k: usize, m: usize) -> anyhow::Result<Decoder<'_>> {
        type Invert = unsafe extern "C" fn(*mut c_uchar, *mut c_uchar, c_int) -> c_int;
        // SAFETY: the type matches isa-l/erasure_code.h.
        let invert: Symbol<'_, Invert> = unsafe { self.0.get(b"gf_invert_matrix")? };
        let size = c_int::try_from(k)?;
        Ok(Box::new(move |there: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]| {
            ensure!(there.len() == k * k, "a row for each packet that is there");
            let (mut matrix, mut inverse) = (there.to_vec(), vec![0; k * k]);
            // SAFETY: both are k rows of k bytes.
            let status = unsafe { invert(matrix.as_mut_ptr(), inverse.as_mut_ptr(), size) };
            ensure!(status == 0, "gf_invert_matrix found no inverse");
            let rows: Vec<Vec<u8>> = inverse.chunks(k).take(m).map(<[u8]>::to_vec).collect();
            self.encoder(&rows, outputs[0].len())?(inputs, outputs);
            Ok(())
        }))
    }
    /// Returns ISA-L's xor of several inputs. The inputs and the output must be aligned to 32
    /// bytes, as our [`Buffers`] are.
    fn xor(&self) -> anyhow::Result<impl Fn(&[&[u8]], &mut [u8])> {
        type XorGen = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;
        // SAFETY: the type matches isa-l/raid.h.
        let xor_gen: Symbol<'_, XorGen> = unsafe { self.0.get(b"xor_gen")? };
        Ok(move |inputs: &[&[u8]], output: &mut [u8]| {
            assert!(inputs.len() <= 8 && inputs.iter().all(|input| input.len() == output.len()));
            let mut vectors = [std::ptr::null_mut::<c_void>(); 9];
            for (pointer, input) in vectors.iter_mut().zip(inputs) {
                *pointer = input.as_ptr().cast_mut().cast();
            }
            vectors[inputs.len()] = output.as_mut_ptr().cast();
            // SAFETY: `vectors` has the inputs, which are only read, then the output. All are
            // aligned.
            let status =
                unsafe { xor_gen(inputs.len() as c_int + 1, output.len() as c_int, vectors.as_mut_ptr()) };
            assert!(status == 0, "xor_gen refused its arguments");
        })
    }
}

/// Least share of ISA-L's speed that a cell must reach. Two equal contenders differ by up to the
/// remaining 5 % from turn to turn.
const GRAIN: f64 = 0.95;

/// The least ratio to ISA-L's speed that `cell` must reach.
fn ratio_min(cell: &Cell, kernel: Kernel, isa_l_minor: u32) -> f64 {
    let gfni = matches!(kernel, Kernel::Gfni512 | Kernel::Gfni256);
    match (cell.job, cell.k, cell.outputs, cell.size_bytes) {
        ("gf_dot", 2, 1, 9000) if gfni && isa_l_minor > 30 => 1.6,
        ("gf_dot", 2, 1, 9000) if gfni => 3.4,
        _ => GRAIN,
    }
}

/// The minor version of the ISA-L that is loaded, by its file's name (`libisal.so.2.0.30`).
fn isa_l_minor() -> anyhow::Result<u32> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let file = maps.lines().find_map(|line| line.split_once("libisal.so.")).map(|(_, version)| version);
    let minor = file.and_then(|version| version.rsplit('.').next()?.parse().ok());
    minor.with_context(|| format!("version of {ISA_L}: its file is not called libisal.so.2.0.MINOR"))
}

/// Checks the cells against ISA-L. Errors: cells that are slower than they must be.
fn check(rows: &[Vec<Cell>], kernel: Kernel) -> anyhow::Result<()> {
    let minor = isa_l_minor()?;
    let slow: Vec<String> = rows
        .iter()
        .filter_map(|cells| {
            let (ours, peer) = (cells.first()?, cells.iter().find(|c| c.peer == Some("isa-l"))?);
            let (ratio, least) = (ours.gbytes_per_s / peer.gbytes_per_s, ratio_min(ours, kernel, minor));
            (ratio < least).then(|| {
                format!(
                    "{} {} to {}, {} bytes: {ratio:.2} (at least {least})",
                    ours.job, ours.k, ours.outputs, ours.size_bytes
                )
            })
        })
        .collect();
    let cells = rows.len();
    ensure!(
        slow.is_empty(),
        "{} of {cells} cells too slow beside ISA-L 2.{minor}: {}",
        slow.len(),
        slow.join("; ")
    );
    eprintln!("all {cells} cells are as fast as they must be beside ISA-L 2.{minor}");
    Ok(())
}

/// Runs all cells and prints them, then does the same with the LT codes.
///
/// Errors: ISA-L's outputs differ from ours; with `--check`, a cell is too slow or ISA-L is
/// missing; with LT codes, the decoded bytes differ from the encoded ones.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let wants = |part: Part| args.only.is_none_or(|only| only == part);
    let isa_l = load_isa_l(args)?;
    let kernels = if wants(Part::Kernels) { run_kernels(args, isa_l.as_ref())? } else { Ok(()) };
    let mut outcomes = vec![kernels];
    if wants(Part::Fec) {
        let cells = fec::measure(isa_l.as_ref(), args.seconds_per_cell)?;
        let exact = fec::exact()?;
        if args.json {
            print_json(&cells)?;
            print_json(&exact)?;
        } else {
            fec::print_table(&cells);
            fec::print_exact(&exact);
        }
        outcomes.push(if args.check { fec::check(&cells) } else { Ok(()) });
    }
    if wants(Part::Lt) {
        let rows = lt::measure(args.peers, args.seconds_per_cell)?;
        if args.json {
            print_json(&rows)?;
        } else {
            lt::print_table(&rows);
        }
        outcomes.push(if args.check { lt::check(&rows) } else { Ok(()) });
    }
    outcomes.into_iter().collect()
}

fn print_json(rows: &[impl Serialize]) -> anyhow::Result<()> {
    for row in rows {
        println!("{}", serde_json::to_string(row)?);
    }
    Ok(())
}

fn load_isa_l(args: &Args) -> anyhow::Result<Option<IsaL>> {
    let isa_l = if args.peers { IsaL::load() } else { None };
    if args.peers && isa_l.is_none() {
        ensure!(!args.check, "--check: {ISA_L} is not installed (Debian: apt-get install libisal2)");
        eprintln!("{ISA_L} is not installed (Debian: apt-get install libisal2): its cells are left out");
    }
    Ok(isa_l)
}

/// Runs the cells of the kernels and prints them. The inner result is the outcome of their check.
fn run_kernels(args: &Args, isa_l: Option<&IsaL>) -> anyhow::Result<anyhow::Result<()>> {
    let kernel = args.kernel.unwrap_or_else(kernel_in_use);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for size in SIZES_BYTES {
        for k in INPUTS {
            let jobs = OUTPUTS.map(|outputs| ("gf_dot", outputs)).into_iter().chain([("xor", 1)]);
            for (job, outputs) in jobs {
                let times = match job {
                    "gf_dot" => dot_times(args, kernel, isa_l, size, k, outputs),
                    _ => xor_times(args, kernel, isa_l, size, k),
                }
                .with_context(|| format!("{job}, {k} inputs, {outputs} outputs, {size} bytes"))?;
                let cells = times.into_iter().map(|(peer, seconds)| Cell {
                    job,
                    k,
                    outputs,
                    size_bytes: size,
                    gbytes_per_s: (k * size) as f64 / seconds * 1e-9,
                    kernel: if peer.is_none() { Some(kernel.name()) } else { None },
                    peer,
                });
                let cells: Vec<Cell> = cells.collect();
                if args.json {
                    for cell in &cells {
                        println!("{}", serde_json::to_string(cell)?);
                    }
                }
                rows.push(cells);
            }
        }
    }
    if !args.json {
        print_table(kernel, &mut rows);
    }
    Ok(if args.check { check(&rows, kernel) } else { Ok(()) })
}

type Times = Vec<(Option<&'static str>, f64)>;

fn dot_times(
    args: &Args,
    kernel: Kernel,
    isa_l: Option<&IsaL>,
    size: usize,
    k: usize,
    outputs: usize,
) -> anyhow::Result<Times> {
    let matrix = coefficients(k, outputs);
    let matrix_rows: Vec<&[u8]> = matrix.iter().map(Vec::as_slice).collect();
    let (mut ours, mut theirs) = (Buffers::new(size, k, outputs), Buffers::new(size, k, outputs));
    let (inputs, mut out) = ours.split();
    let (_, mut peer_out) = theirs.split();
    let call_ours = |out: &mut [&mut [u8]]| match out {
        [out] => kernel.gf_dot(matrix_rows[0], black_box(&inputs), out),
        out => kernel.gf_dot_many(&matrix_rows, black_box(&inputs), out),
    };
    let encode = isa_l.map(|isa_l| isa_l.encoder(&matrix, size)).transpose()?;
    if let Some(encode) = &encode {
        call_ours(&mut out);
        encode(&inputs, &mut peer_out);
        ensure!(out == peer_out, "ISA-L's outputs differ from ours");
    }
    let mut names = vec![None];
    let mut contenders: Vec<Box<dyn FnMut() + '_>> = vec![Box::new(|| call_ours(black_box(&mut out)))];
    if let Some(encode) = &encode {
        names.push(Some("isa-l"));
        contenders.push(Box::new(|| encode(black_box(&inputs), black_box(&mut peer_out))));
    }
    if args.peers {
        let mut encoder = reed_solomon_simd::ReedSolomonEncoder::new(k, outputs, size)?;
        let inputs = &inputs;
        names.push(Some("reed-solomon-simd"));
        contenders.push(Box::new(move || {
            for input in inputs {
                encoder.add_original_shard(input).expect("k shards of the size it was made for");
            }
            black_box(encoder.encode().expect("all k shards were added").recovery_iter().count());
        }));
    }
    let seconds = best_seconds(&mut contenders, args.seconds_per_cell);
    Ok(names.into_iter().zip(seconds).collect())
}

fn xor_times(
    args: &Args,
    kernel: Kernel,
    isa_l: Option<&IsaL>,
    size: usize,
    k: usize,
) -> anyhow::Result<Times> {
    let (mut ours, mut theirs) = (Buffers::new(size, k, 1), Buffers::new(size, k, 1));
    let (inputs, mut out) = ours.split();
    let (_, mut peer_out) = theirs.split();
    let ([out], [peer_out]) = (out.as_mut_slice(), peer_out.as_mut_slice()) else { bail!("one output each") };
    let xor_gen = isa_l.map(IsaL::xor).transpose()?;
    if let Some(xor_gen) = &xor_gen {
        kernel.xor(&inputs, out);
        xor_gen(&inputs, peer_out);
        ensure!(out == peer_out, "ISA-L's xor differs from ours");
    }
    let mut names = vec![None];
    let mut contenders: Vec<Box<dyn FnMut() + '_>> =
        vec![Box::new(|| kernel.xor(black_box(&inputs), black_box(out)))];
    if let Some(xor_gen) = &xor_gen {
        names.push(Some("isa-l"));
        contenders.push(Box::new(|| xor_gen(black_box(&inputs), black_box(peer_out))));
    }
    let seconds = best_seconds(&mut contenders, args.seconds_per_cell);
    Ok(names.into_iter().zip(seconds).collect())
}

fn print_table(kernel: Kernel, rows: &mut [Vec<Cell>]) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    let ours = format!("ours ({kernel})");
    table.set_header(["job", "k", "outputs", "bytes", &ours, "isa-l", "ours / isa-l", "reed-solomon-simd"]);
    rows.sort_by_key(|cells| (cells[0].job, cells[0].outputs, cells[0].k, cells[0].size_bytes));
    for cells in rows {
        let speed =
            |peer: Option<&str>| cells.iter().find(|cell| cell.peer == peer).map(|cell| cell.gbytes_per_s);
        let shown = |speed: Option<f64>| speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.1}"));
        let ratio = speed(Some("isa-l")).and_then(|peer| Some(speed(None)? / peer));
        let cell = &cells[0];
        table.add_row([
            cell.job.to_owned(),
            cell.k.to_string(),
            cell.outputs.to_string(),
            cell.size_bytes.to_string(),
            shown(speed(None)),
            shown(speed(Some("isa-l"))),
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            shown(speed(Some("reed-solomon-simd"))),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    println!("{table}\nGB of input per CPU second, best of many short turns.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_completes_a_short_measurement() {
        for kernel in Kernel::available() {
            let args = Args {
                peers: true,
                json: true,
                only: None,
                seconds_per_cell: 1e-6,
                kernel: Some(kernel),
                check: false,
            };
            let isa_l = IsaL::load();
            for outputs in OUTPUTS {
                let times = dot_times(&args, kernel, isa_l.as_ref(), 1500, 3, outputs).unwrap();
                assert!(times.iter().all(|&(_, seconds)| seconds > 0.0));
            }
            assert!(!xor_times(&args, kernel, isa_l.as_ref(), 1500, 3).unwrap().is_empty());
        }
    }

    #[test]
    fn check_names_a_slow_cell() {
        let cell = |gbytes_per_s, peer| Cell {
            job: "gf_dot",
            k: 2,
            outputs: 1,
            size_bytes: 9000,
            gbytes_per_s,
            kernel: None,
            peer,
        };
        assert_eq!(ratio_min(&cell(1.0, None), Kernel::Avx2, 30), GRAIN);
        assert_eq!(ratio_min(&cell(1.0, None), Kernel::Gfni512, 30), 3.4);
        assert_eq!(ratio_min(&cell(1.0, None), Kernel::Gfni256, 32), 1.6);
        let Some(_isa_l) = IsaL::load() else { return };
        let row = |ours| vec![vec![cell(ours, None), cell(1.0, Some("isa-l"))]];
        assert!(check(&row(1.0), Kernel::Avx2).is_ok());
        let error = check(&row(0.9), Kernel::Avx2).unwrap_err().to_string();
        assert!(error.contains("gf_dot 2 to 1, 9000 bytes: 0.90"), "{error}");
    }

    #[test]
    fn seconds_out_of_range_are_refused() {
        assert_eq!(parse_seconds("60"), Ok(60.0));
        assert!(
            parse_seconds("60.5").is_err() && parse_seconds("0").is_err() && parse_seconds("soon").is_err()
        );
    }
}
