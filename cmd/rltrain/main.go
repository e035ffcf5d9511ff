// Command rltrain trains text classifiers and language models, supervised and by reinforcement learning, and
// measures, compares, uses, merges and describes what it trained.
package main

import "github.com/rltrain/rltrain/cmd/rltrain/app"

func main() { app.Main() }
