// Package formula reads answers: LaTeX's mathematics, and mathematics as people type it,
// into a small tree.
//
// [Parse] takes an answer apart into a [Node]: numbers, names, sums, products, powers,
// functions, tuples, sets, intervals, matrices, relations, lists, quantities with units.
// What it cannot read is an error, never a guess. [Readings] gives the other ways in
// which commas and dots of numbers may be meant.
//
// Every answer costs a bounded number of tokens, nodes and levels.
package formula
