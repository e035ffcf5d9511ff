package app

import (
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a shell completion script for bash, zsh or fish",
		ArgsUsage: "SHELL",
		Description: `bash: source <(rltrain completion bash)
zsh:  source <(rltrain completion zsh)
fish: rltrain completion fish | source`,
		Action: func(c *cli.Context) error {
			script := ""
			switch shell := c.Args().First(); shell {
			case "bash":
				script = bashCompletion
			case "zsh":
				script = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + bashCompletion
			case "fish":
				script = fishCompletion
			default:
				return shared.UsageErrorf("completion: unknown shell %q; choose bash, zsh or fish", shell)
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// completeValue returns values for the option before the completion request. ok is false if the last word is not an option
// with known values; then the shell completes file names.
func completeValue(args []string) (values []string, ok bool) {
	n := len(args) - 1
	if n < 1 || args[n] != "--generate-bash-completion" {
		return nil, false
	}
	args = args[:n]
	if args[len(args)-1] == "=" {
		args = args[:len(args)-1]
	}
	if len(args) == 0 || !strings.HasPrefix(args[len(args)-1], "--") {
		return nil, false
	}
	return config.Completions(args)
}

// bashCompletion asks rltrain for words; if there are none, bash completes file names.
const bashCompletion = `_rltrain() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  local asked=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  [[ $word == "=" ]] && word=""
  [[ $word == -* ]] && asked+=("${word/#--/-}") # nothing after a bare -- is an option
  COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-bash-completion 2> /dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _rltrain rltrain
`

// fishCompletion does the same for fish.
const fishCompletion = `function __rltrain_complete
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  set -l option ''
  switch $word
    case '--*=*'
      set option (string split -m 1 = -- $word)[1]
      set -a words $option
      set option $option=
    case '-*'
      set -a words (string replace -r '^--' - -- $word) # nothing after a bare -- is an option
  end
  set -l found $option(command $words --generate-bash-completion 2> /dev/null)
  if set -q found[1]
    printf '%s\n' $found
  else
    __fish_complete_path $word
  end
end
complete -c rltrain -f -a '(__rltrain_complete)'
`
