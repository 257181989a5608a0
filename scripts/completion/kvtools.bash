# bash completion of the tools: options as --help has them, schemes and policies
# after -s, else files.
_kvtools()
{
    local tool=$1 cur=$2 prev=$3 words=
    case $prev in
    -s | --spec)
        words=$("$tool" --list 2>/dev/null | sed -n 's/^\([a-z][^ ]*\) .*/\1/p')
        ;;
    -p | --protocol) words="all stream prefill: llama.cpp" ;;
    --device) words="auto cpu cuda" ;;
    --level) words="c avx2 avx512" ;;
    --format) words="csv tsv jsonl md" ;;
    *)
        [[ $cur == -* ]] && words=$("$tool" --help 2>/dev/null |
            sed -n 's/^  \(-., \|    \)\(--[a-z0-9-]*\).*/\2/p')
        ;;
    esac
    if [[ $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    else
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}
complete -o filenames -F _kvtools kvattn kvcalib kvdump kvgen kvppl kvquant kvsim
