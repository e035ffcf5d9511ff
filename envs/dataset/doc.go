// Package dataset reads labelled text from CSV, JSON and JSON Lines files and
// divides it into training, validation and test parts.
//
// Files are read as a stream: only the rows themselves are kept. A file that
// cannot be trained on as it stands (a row short of a column, an empty text,
// bytes that are not UTF-8) is refused with one line that names the file, the
// line and the column, because a row silently dropped or repaired changes the
// result without a trace.
//
// Everything here is a pure function of its arguments; equal input and seed
// give equal parts on every machine.
package dataset
