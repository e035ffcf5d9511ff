// Package torch is the border between Go and the native core: the only package that speaks C, the
// tokenizer aside.
//
// # Memory
//
// Tensors are native memory that the garbage collector does not see, so their life is explicit.
// [Do] runs a function with a [Scope]; every tensor made through the scope is freed when the function
// returns, whatever happens. [Scope.Keep] moves one out into a [Var], which lives until its Close:
// parameters and optimiser state are Vars. A Var that was lent to a scope stays reachable until that
// scope ends. [Live] counts the handles that Go holds, [Forgotten] the Vars that only the garbage
// collector freed, which is a bug in the program.
//
// # Errors
//
// Operators are methods of the scope and panic with *[Error], which Do returns: maths stays readable and
// the API stays error-returning.
//
// # Threads
//
// Grad mode is part of each call and errors are values, so neither depends on the OS thread. The order in
// which autograd sums does: Do keeps its goroutine on one thread while a graph is recorded. A process should
// also run its compute phases on one [Thread]: every OS thread that computes gets workers of its own.
//
// # The library
//
// librltrain.so and libtorch behind it are opened at first use, so that a program that computes nothing
// starts in milliseconds and a missing library is an error, not a failure to start.
//
// Letters in shapes: S sequences, N packed tokens, H hidden size, C classes, r adapter rank.
package torch
