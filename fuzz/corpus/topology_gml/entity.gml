graph [ node [ id 1 label "&#xffffffff;&amp" ] edge [ source 1 target 1 ] ]
