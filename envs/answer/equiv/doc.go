// Package equiv decides whether two mathematical answers mean the same.
//
// [Compare] parses both with package formula and applies the first rule that fits: numbers exactly, decimals to their
// precision, units, named values, lists and sets in any order, tuples and matrices entry by entry, sets of real numbers as
// unions of intervals, equations up to a factor, and expressions by a normal form or by their values at fixed points, with
// error bounds. It compares as text what it cannot parse. In doubt, the answers differ.
//
// The work per pair is bounded for any input.
package equiv
