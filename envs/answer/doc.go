// Package answer extracts the answer from a model's response and decides whether two answers are the same.
//
// [Extract] reads a number, from the required answer format down to the last number of the text, and reports how it found
// it; so a correct answer in the wrong format is recognisable. [Final], [Boxed] and [GSM8K] read the endings of worked
// mathematics. [Find] reads an answer in any notation. [Match] compares text, values, quantities or, with [Math], meanings.
//
// Everything here is a pure function. Values are exact rationals: 0.1 is one tenth.
package answer
