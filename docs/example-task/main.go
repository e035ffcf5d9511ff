// Command example-task is rltrain with a task, a reward, an algorithm, a source and a model family of its own beside the
// built-in ones.
package main

import "github.com/rltrain/rltrain/cmd/rltrain/app"

func main() { app.Main() }
