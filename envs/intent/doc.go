// Package intent is the task of naming the subject of a question: one label of
// a fixed set for one text, right or wrong.
//
// It holds the built-in data set (questions written for this program, 14
// subjects, a fixed division into training, validation and test questions)
// and the files that carry a model's labels beside its weights.
package intent
