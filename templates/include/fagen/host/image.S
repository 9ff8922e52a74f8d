/* What a kernel unit was compiled to, as bytes of the library: FAGEN_IMAGE names the file and FAGEN_SYMBOL its start. */
        .section .rodata
        .balign 64
        .globl FAGEN_SYMBOL
        .hidden FAGEN_SYMBOL
FAGEN_SYMBOL:
        .incbin FAGEN_IMAGE
        .byte 0
        .section .note.GNU-stack, "", %progbits
