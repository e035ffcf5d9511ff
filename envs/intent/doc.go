// Package intent is the task of classifying a question by its subject.
//
// It holds the built-in data set: questions written for rltrain, 14 subjects, a fixed train/validation/test split. It also
// reads and writes the files that store a model's labels next to its weights.
package intent
