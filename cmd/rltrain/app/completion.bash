_rltrain() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  local asked=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  [[ $word == "=" ]] && word=""
  [[ $word == -* ]] && asked+=("${word/#--/-}") # nothing after a bare -- is an option
  COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-bash-completion 2> /dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _rltrain rltrain
