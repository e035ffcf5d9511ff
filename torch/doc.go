// Package torch is the binding between Go and the native core: the only package that calls C, except for the tokenizer.
//
// # Memory
//
// Tensors are native memory, invisible to the garbage collector, so their lifetime is explicit. [Do] runs a function with a
// [Scope] and frees every tensor made through the scope when the function returns or panics. [Scope.Keep] moves a tensor
// into a [Var], which lives until Close: parameters and optimiser state are Vars. A Var used in a scope stays reachable
// until the scope ends. [Live] counts the handles held by Go. [Forgotten] counts the Vars freed only by the garbage
// collector, which are bugs.
//
// # Errors
//
// Operators are methods of the scope and panic with *[Error], which Do returns. This keeps formulas readable and the API
// error-returning.
//
// # Threads
//
// Grad mode is part of each call and errors are values, so neither depends on the OS thread. The order in which autograd
// sums does: Do locks its goroutine to one thread while it records a graph. A process should also run its compute phases
// on one [Thread], because every OS thread that computes gets its own workers.
//
// # The library
//
// librltrain.so and libtorch are opened at first use. A program that computes nothing starts in milliseconds, and a missing
// library is an error instead of a failure to start.
//
// Letters in shapes: S sequences, N packed tokens, H hidden size, C classes, r adapter rank.
package torch
