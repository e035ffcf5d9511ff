function __rltrain_complete
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
