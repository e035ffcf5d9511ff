#compdef rltrain
# A file in $fpath called _rltrain, or: source <(rltrain completion zsh)
_rltrain() {
  local word=${words[CURRENT]} option=
  local -a asked found
  asked=("${words[@]:0:$((CURRENT - 1))}")
  case $word in
    --*=*)
      option=${word%%=*}=
      asked+=("${word%%=*}")
      ;;
    -*) asked+=("${word/#--/-}") ;; # nothing after a bare -- is an option
  esac
  found=(${(f)"$("${asked[@]}" --generate-bash-completion 2> /dev/null)"})
  if (( $#found )); then
    compadd -- $option$^found
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _rltrain ]]; then
  _rltrain "$@"
else
  (( $+functions[compdef] )) || { autoload -U compinit && compinit }
  compdef _rltrain rltrain
fi
