// Command options writes docs/options.md: the options of the training command, and the names of other programs that are
// understood, from the code that reads them.
//
//	go run ./scripts/options
package main

import (
	"fmt"
	"os"

	_ "github.com/rltrain/rltrain/cmd/rltrain/app" // has the tasks
	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/internal/outfile"
)

func main() {
	if err := outfile.Write("docs/options.md", []byte(page()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "options:", err)
		os.Exit(1)
	}
}

// page is docs/options.md.
func page() string {
	return `# Options

This page is written by ` + "`go run ./scripts/options`" + ` from the code that reads the options; a test tells when it is old.
` + "`rltrain train --task NAME --help-all`" + ` shows the options of a task, with what they need.

An option is written --name value or --name=value, with dashes or underscores. The same names work in the file of
--config, and as variables RLTRAIN_NAME. A command line wins over a variable, a variable over the file, and the file over
the recipe of the task. All mistakes are told at once, each with the nearest name.

# Names of other programs

` + config.NamesTables() + `# Rewards

What ` + "`--reward`" + ` can name: NAME or NAME=WEIGHT, joined by commas.

` + config.RewardTable() + `
# All options

` + config.OptionTables()
}
