package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

func manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the manual page",
		Description: "rltrain man | man -l -   shows it; make install and the packages install it.",
		Action: func(c *cli.Context) error {
			_, err := io.WriteString(c.App.Writer, manual(c.App))
			return err
		},
	}
}

// manual is the manual page in troff's man macros.
func manual(app *cli.App) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH RLTRAIN 1 \"\" \"rltrain %s\" \"User Commands\"\n", shared.Version)
	fmt.Fprintf(&b, ".SH NAME\nrltrain \\- %s\n", troff(app.Usage))
	b.WriteString(".SH SYNOPSIS\n.nf\n" + troff(app.UsageText) + "\n.fi\n")
	b.WriteString(`.SH DESCRIPTION
rltrain trains language models and text classifiers, and generates, predicts, evaluates and serves with them. Without a
command, its options are those of
.B rltrain train.
`)
	b.WriteString(".SH COMMANDS\n")
	for _, c := range app.Commands {
		manCommandHead(&b, "", c)
		if c.SkipFlagParsing { // train's options have a section of their own
			continue
		}
		manFlags(&b, c.Flags)
		for _, sub := range c.Subcommands {
			manCommandHead(&b, c.Name+" ", sub)
			manFlags(&b, sub.Flags)
		}
	}
	b.WriteString(".SH OPTIONS OF TRAIN\nWhich of them a run has depends on its task, mode and algorithm: rltrain train \\-\\-task NAME \\-\\-help\\-all.\n")
	for _, group := range config.OptionGroups() {
		fmt.Fprintf(&b, ".SS %s\n", troff(group.Name))
		for _, o := range group.Options {
			fmt.Fprintf(&b, ".TP\n.B %s\n", troff(strings.TrimSpace(o.Flag+" "+o.Arg)))
			text := o.Help
			if o.Default != "" && o.Default != "none" {
				text += " (default " + strings.ReplaceAll(o.Default, "`", "") + ")"
			}
			b.WriteString(troff(text) + "\n")
		}
	}
	b.WriteString(manEnd)
	return b.String()
}

func manCommandHead(b *strings.Builder, parent string, c *cli.Command) {
	fmt.Fprintf(b, ".SS rltrain %s\n%s.\n", troff(strings.TrimSpace(parent+c.Name+" "+c.ArgsUsage)), troff(strings.TrimSuffix(c.Usage, ".")))
	if c.Description != "" {
		b.WriteString(".PP\n.nf\n" + troff(c.Description) + "\n.fi\n")
	}
}

func manFlags(b *strings.Builder, flags []cli.Flag) {
	for _, f := range flags {
		documented, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		name := "--" + f.Names()[0]
		if documented.TakesValue() {
			name += " VALUE"
		}
		text := documented.GetUsage()
		if value := documented.GetDefaultText(); documented.TakesValue() && value != "" && value != `""` && !strings.Contains(text, "default") {
			text += " (default " + value + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", troff(name), troff(text))
	}
}

// troff escapes text: a line must not begin with a control character, and a dash is one that can be copied.
func troff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

const manEnd = `.SH ENVIRONMENT
.TP
.B RLTRAIN_OPTION
sets an option of train, such as RLTRAIN_EPOCHS=3.
.TP
.B RLTRAIN_CACHE
the folder for libtorch and models (default ~/.cache/rltrain).
.TP
.B LIBTORCH
the folder of libtorch, with include and lib.
.TP
.B HF_HOME, HF_TOKEN, HF_HUB_OFFLINE
as for Hugging Face's Python packages.
.TP
.B PIP_INDEX_URL, HTTPS_PROXY, NO_PROXY
where and how rltrain setup downloads; pip.conf and .netrc count too.
.SH EXIT STATUS
0 success, 1 failure, 2 a mistake in the command, 124 \-\-max\-time is over, 128 + N stopped by signal N.
.SH SEE ALSO
https://github.com/rltrain/rltrain
`
