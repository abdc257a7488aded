//! Moves of the last circuits to switches whose ports are free earlier.

use super::{Piece, PieceOrders};
use std::collections::BinaryHeap;

/// Maximum number of moves for each port of each switch.
const MOVES: usize = 8;

/// A piece with its start time on the switch.
struct TimedPiece {
    piece: Piece,
    start: u64,
}

impl TimedPiece {
    fn end(&self) -> u64 {
        self.start + self.piece.length
    }
}

/// The pieces of one switch, and for each port the indices of its pieces in order.
struct SwitchPieces {
    pieces: Vec<TimedPiece>,
    ports: Vec<Vec<usize>>,
}

impl SwitchPieces {
    fn ports_of(&self, piece: Piece) -> [usize; 2] {
        [piece.source, self.ports.len() / 2 + piece.destination]
    }

    /// Earliest start of `piece` after all pieces of its two ports.
    fn earliest(&self, piece: Piece, night: u64) -> u64 {
        let [sender, receiver] = self.ports_of(piece).map(|port| self.ports[port].last());
        let free =
            [sender, receiver].into_iter().flatten().map(|at| self.pieces[*at].end()).max().unwrap_or(0);
        // If one piece is the last of both ports, it is an earlier part of the same pair, and no
        // night is needed.
        free + if sender.is_some() && sender == receiver { 0 } else { night }
    }

    fn push(&mut self, piece: Piece, night: u64) -> usize {
        let start = self.earliest(piece, night);
        let at = self.pieces.len();
        for port in self.ports_of(piece) {
            self.ports[port].push(at);
        }
        self.pieces.push(TimedPiece { piece, start });
        at
    }
}

/// Moves parts of the piece that ends last to the switch where both parts then end earliest, until
/// no move helps.
///
/// `may_hold` returns true if a switch may hold a piece. The makespan does not grow. Cost:
/// O(switches) for each move.
pub(crate) fn level(
    racks: usize,
    night: u64,
    orders: PieceOrders,
    may_hold: &dyn Fn(usize, &Piece) -> bool,
) -> PieceOrders {
    let count = orders.len();
    let mut lines: Vec<SwitchPieces> = Vec::with_capacity(count);
    let mut ends = BinaryHeap::new();
    for (switch, order) in orders.into_iter().enumerate() {
        let mut line =
            SwitchPieces { pieces: Vec::with_capacity(order.len()), ports: vec![Vec::new(); 2 * racks] };
        for piece in order {
            let at = line.push(piece, night);
            ends.push((line.pieces[at].end(), switch, at));
        }
        lines.push(line);
    }
    for _ in 0..MOVES * racks * count {
        let Some((end, switch, at)) = ends.pop() else { break };
        let piece = lines[switch].pieces[at].piece;
        if piece.length == 0 || lines[switch].pieces[at].end() != end {
            continue;
        }
        let others = (0..count).filter(|other| *other != switch && may_hold(*other, &piece));
        let Some((free, other)) = others.map(|other| (lines[other].earliest(piece, night), other)).min()
        else {
            break;
        };
        if free + 1 >= end {
            break;
        }
        let moved = ((end - free) / 2).min(piece.length);
        // A piece that is moved whole may end later than if half of it moved, but not later than
        // before.
        let to = lines[other].push(Piece { length: moved, ..piece }, night);
        ends.push((lines[other].pieces[to].end(), other, to));
        let rest = piece.length - moved;
        lines[switch].pieces[at].piece.length = rest;
        if rest > 0 {
            ends.push((lines[switch].pieces[at].end(), switch, at));
        } else {
            for port in lines[switch].ports_of(piece) {
                let last = lines[switch].ports[port].pop();
                assert_eq!(last, Some(at), "what ends last is the last of its ports");
            }
        }
    }
    let order = |line: SwitchPieces| {
        line.pieces.into_iter().map(|timed| timed.piece).filter(|piece| piece.length > 0).collect()
    };
    lines.into_iter().map(order).collect()
}
