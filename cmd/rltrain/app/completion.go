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
		Usage:     "print a script that completes commands and options: bash, zsh or fish",
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
				return shared.UsageErrorf("completion: %q is none of bash, zsh and fish", shell)
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// completeValue gives the values of the option that a shell wants completed: the last word but for the request itself.
// ok is false where no option that takes a value is last; names of files are left to the shell.
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

// bashCompletion asks the program itself. Where it has nothing to say, bash completes names of files.
const bashCompletion = `_rltrain() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  local asked=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  [[ $word == "=" ]] && word=""
  [[ $word == -* ]] && asked+=("${word/#--/-}") # after -- alone nothing is an option
  COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-bash-completion 2> /dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _rltrain rltrain
`

// fishCompletion does the same.
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
      set -a words (string replace -r '^--' - -- $word) # after -- alone nothing is an option
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
