// Package answer finds the answer in a text that a language model wrote, and says
// whether two answers are the same.
//
// [Extract] reads a number through a chain of tiers, from the form that was asked for
// down to the last number of the text, and says which tier it took: a model that is
// right without the form is told from one that has learnt it. [Final], [Boxed] and
// [GSM8K] read the endings of worked mathematics, [Find] any way in which an answer is given.
// [Match] compares: text, values, quantities, or, with [Math], meanings.
//
// Everything here is a pure function. Values are exact rationals: 0.1 is one tenth.
package answer
