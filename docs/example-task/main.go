// Command example-task is rltrain with a task of one's own beside the built-in ones.
package main

import "github.com/rltrain/rltrain/cmd/rltrain/app"

func main() { app.Main() }
